"""Rank-0-first blocks pair up as upstream's do, and in a job that cannot agree they are upstream's."""

from __future__ import annotations

import pytest

# Every scenario leaves the same number of barriers behind on all ranks, upstream too. What is printed
# for each: when the blocks' bodies ran, and when this rank entered the real barriers.
PROGRAM = """
    import ddp_patches.auto
    import sys, time
    import rank_program as job
    from ultralytics.utils.torch_utils import torch_distributed_zero_first

    exec(sys.argv[1])
    job.start(60)
    barriers = job.Barriers()
    leader = job.LOCAL_RANK == 0
    times = {}

    def note(name):
        times[name] = time.time()

    def nested():
        with torch_distributed_zero_first(job.LOCAL_RANK):
            note("outer begins")
            with torch_distributed_zero_first(job.LOCAL_RANK):
                note("inner begins")
                time.sleep(0.3 if leader else 0)
                note("inner ends")
            time.sleep(0.3 if leader else 0)
            note("outer ends")

    def retried():
        for attempt in (1, 2):
            try:
                with torch_distributed_zero_first(job.LOCAL_RANK):
                    if leader and attempt == 1:
                        raise OSError("the file is not there yet")
                    note("body begins")
                    time.sleep(0.3 if leader else 0)
                    note("body ends")
                break
            except OSError:
                time.sleep(0.3)

    def retried_inside_another():
        with torch_distributed_zero_first(job.LOCAL_RANK):
            note("outer begins")
            for attempt in (1, 2):
                try:
                    with torch_distributed_zero_first(job.LOCAL_RANK):
                        if leader and attempt == 1:
                            raise OSError("the file is not there yet")
                        note("inner ends")
                    break
                except OSError:
                    time.sleep(float(sys.argv[2]))
            note("outer ends")

    def another_exception_outside():
        for attempt in (1, 2):
            try:
                with torch_distributed_zero_first(job.LOCAL_RANK):
                    note("outer begins")
                    try:
                        with torch_distributed_zero_first(job.LOCAL_RANK):
                            if leader and attempt == 1:
                                raise OSError("the file is not there yet")
                            note("inner ends")
                    except OSError as error:
                        raise KeyError("no such data set") from error
                    note("outer ends")
                break
            except KeyError:
                pass

    for scenario in (nested, retried, retried_inside_another, another_exception_outside):
        times.clear()
        del barriers.entered[:]
        scenario()
        job.say(scenario=scenario.__name__, times=times, entered=barriers.entered, total=job.total())
    """

SCENARIOS = ["nested", "retried", "retried_inside_another", "another_exception_outside"]
PROTOCOL = "from ddp_patches.runtime import records; records.PROTOCOL += job.RANK == 1"


def both(job, scenario):
    """The answers of a leader and of a waiter, after what holds with and without ddp_patches."""
    answers = [job.answer(rank, scenario=scenario) for rank in range(len(job.results))]
    assert {answer["total"] for answer in answers} == {sum(range(1, len(answers) + 1))}
    assert {len(answer["entered"]) for answer in answers} == {1 if scenario == "retried" else 2}
    return answers[0], answers[-1]


def check_order(job):
    """A waiter's outer barrier pairs with the leader's inner one: it is the leader's first."""
    leader, waiter = both(job, "nested")
    assert waiter["times"]["outer begins"] >= leader["times"]["inner ends"]
    assert waiter["times"]["inner begins"] >= leader["times"]["outer ends"]
    leader, waiter = both(job, "retried")
    assert waiter["times"]["body begins"] >= leader["times"]["body ends"]
    for scenario in SCENARIOS[2:]:
        leader, waiter = both(job, scenario)
        assert waiter["times"]["outer begins"] >= leader["times"]["inner ends"]
        assert waiter["times"]["inner ends"] >= leader["times"]["outer ends"]


def waited_inside_the_barrier(job):
    """Whether a waiter sat in the real barrier while the leader was at work, as upstream's do.

    Asked of the second scenario: in the first one, ranks may look for each other for two seconds.
    """
    leader, waiter = both(job, "retried")
    return waiter["entered"][0] < leader["times"]["body ends"]


def test_blocks_pair_up_as_upstreams_do(jobs):
    """Nested; failed and retried; failed and retried inside another; failed with another exception outside.

    The off case shows what the on case is compared with: the same barriers, but waited for inside.
    """
    # The leader stays inside its outer block for longer than waiters give to one that has failed.
    arguments = ["0", "3.5"]
    on, off = (
        jobs.start(name, PROGRAM, 2, arguments=arguments, patched=name == "on") for name in ("on", "off")
    )
    for job in (on.wait(), off.wait()):
        check_order(job)
    assert waited_inside_the_barrier(off)
    assert not waited_inside_the_barrier(on)
    assert not on.lines("acts as upstream")
    assert len(on.lines("is on for 2 of 2 ranks")) == 1


OFF = {"DDP_PATCHES": "0"}


@pytest.mark.parametrize(
    "name, first_line, each, reason",
    [
        ("a waiter without", "0", {1: OFF}, "rank 1 is without ddp_patches"),
        ("a leader without", "0", {0: OFF}, "rank 0 is without ddp_patches"),
        ("two protocols", PROTOCOL, {}, "has protocol 1, rank 1"),
        ("other settings", "0", {2: {"DDP_PATCHES_ZERO_FIRST_TIMEOUT": "1h"}}, "zero_first_timeout 86400.0"),
    ],
)  # fmt: skip
def test_a_mixed_job_is_upstreams_with_one_warning(jobs, name, first_line, each, reason):
    """Without the agreement, ranks would wait for counts that never come: until the group's limit."""
    job = jobs.start("job", PROGRAM, 3, each=each, arguments=[first_line, "0.1"]).wait()
    check_order(job)
    assert waited_inside_the_barrier(job)
    warnings = job.lines("acts as upstream")
    assert len(warnings) == 1 and reason in warnings[0], job
    starts = job.lines("is on for")
    if name == "a leader without":
        assert not starts
    else:
        assert len(starts) == 1
        assert ("(not rank 1)" in starts[0]) == (name == "a waiter without")
