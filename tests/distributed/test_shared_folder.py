"""The check of a shared folder among real ranks: who does not come costs no more than it does upstream."""

from __future__ import annotations

CHECK = """
    import ddp_patches.auto
    import os, signal, sys, time
    import rank_program as job
    from ddp_patches.runtime import job as jobs, shared_folder

    folder, limit, absent = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    job.start(limit)
    running = jobs.current()
    assert running.obstacle("torch.process_group_timeout", 30) is None

    def check(name, where):
        began = time.monotonic()
        result = shared_folder.Check(running, name, where, "Share it.").result(lambda: None)
        job.say(name=name, result=result, seconds=time.monotonic() - began)

    check("first", folder)
    if job.RANK == 1 and absent == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.RANK == 1 and absent == "late":
        job.wait_for(os.path.join(folder, "gone_on"))
    check("second", os.path.join(folder, "not_there") if absent == "" else folder)
    open(os.path.join(folder, "gone_on"), "w").close()
    check("third", folder)
    if absent != "killed":
        job.meet(sys.argv[4], "end")  # rank 0 hosts the store
    if absent == "killed":
        os._exit(0)
    """


def test_all_ranks_hear_the_same_and_nothing_is_left_behind(jobs):
    job = jobs.start("job", CHECK, 3, arguments=[jobs.folder("shared"), 60, "", jobs.folder("job")]).wait()
    for rank in range(3):
        assert job.answer(rank, name="first")["result"] is None
        text = job.answer(rank, name="second")["result"]
        assert text == job.answer(0, name="second")["result"]
        assert "of 2 of 3 ranks" in text
        assert "rank 2 on" in text
        assert "cannot write there: FileNotFoundError" in text
        assert job.answer(rank, name="third")["result"] is None
    assert list(jobs.folder("shared").iterdir()) == [jobs.folder("shared") / "gone_on"]


RAISE = """
    import ddp_patches.auto
    import sys, time
    import rank_program as job
    from ddp_patches.runtime import job as jobs, shared_folder

    job.start(60)
    assert jobs.current().obstacle("torch.process_group_timeout", 30) is None
    prepare = lambda: time.sleep(3 if job.RANK == 2 else 0)  # the others' looks are a second apart by then
    result = shared_folder.Check(jobs.current(), "only", sys.argv[1], "").result(prepare)
    job.say(result=result)
    import os; os._exit(1)
    """


def test_the_host_of_the_store_ends_only_when_all_have_heard_why(jobs):
    job = jobs.start("job", RAISE, 3, arguments=["/does/not/exist"]).wait(check=False)
    results = [result.check(1).answer["result"] for result in job.results]
    assert len(set(results)) == 1
    assert "2 of 3 ranks" in results[0]


def test_a_rank_that_is_late_or_dead_sends_all_on_as_upstream(jobs):
    """After the group's own limit, or when its process is gone; a late one follows them at once."""
    late = jobs.start("late", CHECK, 2, arguments=[jobs.folder("a"), 6, "late", jobs.folder("late")])
    killed = jobs.start("killed", CHECK, 2, arguments=[jobs.folder("b"), 100, "killed"])
    late.wait()
    assert [late.answer(rank, name=name)["result"] for rank in (0, 1) for name in ("second", "third")] == [
        None
    ] * 4
    assert late.answer(0, name="second")["seconds"] > 5
    assert late.answer(1, name="second")["seconds"] < 5
    killed.wait(80, check=False)
    assert killed.answer(0, name="second")["result"] is None
