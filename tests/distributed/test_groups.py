"""Process groups: the limits in force and who set them, the joining phase, blocking wait, the barrier."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import pytest

from support import environment, ranks

torch = pytest.importorskip("torch")
RELEASE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# A store that no rank hosts, as torchrun's.
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(120)
"""

LIMITS = """
    import ddp_patches.auto
    import datetime, os, sys
    import torch, torch.distributed as dist
    import rank_program as job
    from ddp_patches import settings
    from ddp_patches.runtime import limits

    def in_force(group):
        # Readable since torch 2.1 or so.
        try:
            return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        except (AttributeError, RuntimeError):
            return None

    def case(name, seconds, timeout):
        settings.activate(settings.load(os.environ, timeout=timeout))
        job.start(seconds, sys.argv[1], name)
        world = dist.distributed_c10d._get_default_group()
        explicit = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=77), backend="gloo")
        missing = dist.new_group([0, 1])
        groups = limits.snapshot()["groups"]
        total = torch.ones(1)
        for group in (world, explicit, missing):
            dist.all_reduce(total, group=group)
        job.say(
            case=name, groups=groups, in_force=[in_force(group) for group in (world, explicit, missing)],
            total=total.item(),
        )
        dist.destroy_process_group()
        assert limits.snapshot()["groups"] == []

    case("longer", 10800, "2h")
    case("shorter", 60, "2h")
    case("none", None, "2h")
    case("keep", 60, "keep")
    """

# Of the default group, of one with an explicit limit, of one without.
EXPECTED = {
    "longer": ([10800, 77, 7200], ["the caller", "the caller", "setting timeout; torch's default: 1800s"]),
    "shorter": ([7200, 77, 7200], ["setting timeout; the caller: 60s", "the caller", "torch's default"]),
    "none": ([7200, 77, 7200], ["setting timeout; torch's default: 1800s", "the caller", "torch's default"]),
    "keep": ([60, 77, 1800], ["the caller", "the caller", "torch's default"]),
}


def test_the_limits_in_force_and_who_set_them(jobs):
    """A longer limit is never shortened, a shorter one raised, an explicit one of a subgroup kept."""
    job = jobs.start("job", LIMITS, 2, arguments=[jobs.folder("job")]).wait()
    for rank in (0, 1):
        for case, (seconds, reasons) in EXPECTED.items():
            answer = job.answer(rank, case=case)
            groups = answer["groups"]
            assert [group["timeout"] for group in groups] == seconds, case
            assert [group["group"] for group in groups] == ["default", "ranks [0, 1]", "ranks [0, 1]"]
            for group, reason in zip(groups, reasons):
                assert reason in group["set_by"], (case, group)
            assert answer["total"] == 8
            if RELEASE >= (2, 2):
                assert answer["in_force"] == seconds, case  # asked of the groups themselves
    assert {group["join_timeout"] for group in job.answer(0, case="shorter")["groups"][:1]} == {60}


LATE = """
    import ddp_patches.auto
    import sys, time
    import rank_program as job

    job.start(4)
    if job.RANK == 1:
        time.sleep(9)
    job.say(total=job.total())
    """


@pytest.mark.upstream_fault("torch.process_group_timeout")
def test_a_rank_that_comes_late_to_a_collective(jobs):
    """By behaviour, on every torch: upstream's collective of 4 s ends without the rank that needs 9 s."""
    on, off = jobs.start("on", LATE), jobs.start("off", LATE, patched=False)
    on.wait()
    assert [on.answer(rank)["total"] for rank in (0, 1)] == [3.0, 3.0]
    assert off.wait(check=False).results[0].returncode == 1, off


ALONE = """
    import ddp_patches.auto
    import sys, time
    import rank_program as job
    from ddp_patches.runtime import meeting

    meeting._LINE_SECONDS = 1.0
    began = time.monotonic()
    try:
        job.start(6)
    except Exception as error:
        job.say(seconds=time.monotonic() - began, error=type(error).__name__)
    """


def test_a_lone_rank_gives_up_after_the_callers_limit_and_says_who_is_missing(jobs):
    """With the raised limit it would sit there for two hours.

    On torch before 2.2 gloo itself waits for its peers with the limit of the collectives, and there is
    no way to give it two; there only the messages are looked at.
    """
    job = jobs.start("job", ALONE, 1, each={0: {"WORLD_SIZE": "2"}})
    if RELEASE >= (2, 2):
        job.wait(60)
        assert 4 < job.answer(0)["seconds"] < 40
    else:
        job.running[0].wait_for("did not announce themselves", 60)
        job.wait(0, check=False)
    assert job.lines("init_process_group has waited 0m for rank 1 of 2, which did not announce themselves")


def test_a_rank_whose_store_does_not_answer_says_so(jobs):
    """Rank 1 of 2, and nobody listens at the address."""
    job = jobs.start("job", ALONE, 1, each={0: {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"}})
    job.wait(90)
    assert job.lines("which rank 0 or its launcher hosts, does not answer")
    assert job.answer(0)["seconds"] < 60


BLOCKING = """
    import ddp_patches.auto
    import os, sys
    import rank_program as job

    NAMES = ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")
    ASYNC = ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    if job.RANK != 0:  # as a framework does, right before it makes the group
        os.environ[NAMES[0]] = os.environ[NAMES[1]] = "1"
    job.start(60)
    job.say(**{name: os.environ.get(name) for name in NAMES + ASYNC})
    """


def test_blocking_wait_of_the_user_is_kept_and_that_of_a_framework_removed(jobs):
    """An exported variable is the user's, one that is set while the process runs a framework's.

    Rank 0 exports it; ranks 1 and 2 set it; rank 2 is without ddp_patches.
    """
    exported = {"NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    each = {0: exported, 2: {"DDP_PATCHES": "0"}}
    job = jobs.start("job", BLOCKING, 3, each=each).wait()
    values = [{job.answer(rank)[name] for name in exported} for rank in range(3)]
    assert values == [{"1"}, {None}, {"1"}]
    old = RELEASE < (2, 2)  # and no torchrun: NCCL would have no limit at all
    assert job.answer(1)["NCCL_ASYNC_ERROR_HANDLING"] == ("1" if old else None)
    assert job.answer(1)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] is None


LAZY = """
    import ddp_patches.auto
    import sys, time
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg
    import rank_program as job
    from ddp_patches.runtime import job as runtime_job

    if job.RANK == 0:
        job.wait_for(sys.argv[1] + "/made.1")
        time.sleep(4)  # longer than anybody looks for it
    store, rank, world_size = next(dist.rendezvous("env://"))
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
    job.meet(sys.argv[1], "made")
    job.say(obstacle=runtime_job.current().obstacle("torch.teardown", 10.0))
    dist.destroy_process_group()
    """


@pytest.mark.skipif(RELEASE < (2, 2), reason="has no backend of which a group is made without the others")
def test_a_group_that_is_made_before_rank_0_has_come(jobs):
    """As with NCCL: ``init_process_group`` returns at once. The ranks find each other all the same."""
    port, folder = ranks.free_port(), jobs.folder("job")
    command = [sys.executable, "-c", STORE, str(port)]
    store = jobs.processes("store").start(command, environment.clean(folder))
    store.wait_for("ready", 60)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    each = {rank: {"MASTER_PORT": str(port)} for rank in (0, 1)}
    job = jobs.start("job", LAZY, 2, each=each, arguments=[folder], **agent).wait()
    assert [job.answer(rank)["obstacle"] for rank in (0, 1)] == [None, None], job
    assert len(job.lines("is on for 2 of 2 ranks")) == 1
    assert not job.lines("acts as upstream")
    store.end()


BARRIER = """
    import ddp_patches.auto
    import json, os, sys
    import torch, torch.distributed as dist
    import rank_program as job

    job.start(60)
    try:
        dist.barrier(device_ids=[job.LOCAL_RANK])
        works = True
    except RuntimeError:
        works = False
    mine = dist.new_group([job.RANK])
    other = dist.new_group([1 - job.RANK])
    for _ in range(2):
        a, b = dist.new_group([0]), dist.new_group([1])
        dist.barrier(group=b if job.RANK == 0 else a)  # upstream: returns at once
    job.say(works=works, total=job.total())
    """


def test_device_ids_are_accepted_on_gloo(jobs):
    """Ultralytics until 8.3.100 passes them on every backend. Torch before 2.1 refuses them there."""
    on, off = jobs.start("on", BARRIER), jobs.start("off", BARRIER, patched=False)
    on.wait()
    off.wait()
    for rank in (0, 1):
        assert on.answer(rank) == {"rank": rank, "works": True, "total": 3.0}
        assert off.answer(rank)["works"] == (RELEASE >= (2, 1))
    assert not on.lines("failed when called")


FAKE_NCCL = """
    import json, sys
    import torch, torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    import rank_program as job

    job.start(60)
    passed = []

    def fake_nccl_barrier(group=None, async_op=False, device_ids=None):
        passed.append(device_ids)

    c10d.barrier = dist.barrier = fake_nccl_barrier
    c10d.get_backend = lambda group=None: "nccl"
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 4

    import ddp_patches
    ddp_patches.enable()
    dist.barrier()
    dist.barrier(device_ids=[3])
    torch.cuda.current_device = lambda: 2
    dist.barrier()
    dist.barrier(dist.new_group([0, 1], backend="gloo"))
    class Bound:
        bound_device_id = torch.device("cpu")
    whole, c10d._get_default_group = c10d._get_default_group, Bound
    dist.barrier()
    c10d._get_default_group = whole
    job.say(passed=passed)
    """


def test_what_a_barrier_on_nccl_is_given(jobs):
    """A fake backend by the name of NCCL on rank 1 of 2: not run on a GPU. Late enabling, too."""
    job = jobs.start("job", FAKE_NCCL).wait()
    #                            current 0     given  current 2     a group      bound
    assert job.answer(0)["passed"] == [[0], [3], [2], [2], None]
    assert job.answer(1)["passed"] == [[1], [3], [2], [2], None]


# The device as torch finds it where nobody has set one. A torch that has no such function does not ask.
NOBODYS_DEVICE = """
    import ddp_patches.auto
    import torch, torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    import rank_program as job

    torch._C._get_accelerator = lambda: torch.device("cuda")
    c10d._get_object_coll_device = lambda group: "cuda"
    c10d.is_initialized, c10d.get_backend = lambda: True, lambda group=None: "nccl"
    torch.cuda.current_device, torch.cuda.device_count = lambda: 0, lambda: 2

    class Group:
        bound_device_id = None

        def rank(self):
            return 1

        def barrier(self, opts):
            self.named = list(opts.device_ids), getattr(getattr(opts, "device", None), "index", None)

    group = Group()
    dist.barrier(group, async_op=True)
    job.say(named=group.named)
    """


@pytest.mark.upstream_fault("torch.barrier_device_ids")
def test_torch_hands_nccl_no_device_that_nobody_has_named(jobs):
    """LOCAL_RANK is 1. What NCCL's group makes of it, the guess, is compiled, and not run on a GPU."""
    each = {0: {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}}
    off = jobs.start("off", NOBODYS_DEVICE, 1, each=each, patched=False).wait()
    assert off.answer(0)["named"] == [[], None]
    on = jobs.start("on", NOBODYS_DEVICE, 1, each=each).wait()
    assert on.answer(0)["named"][0] == [1]


RECORDS = """
    import ddp_patches.auto
    import errno, os, sys, tempfile, time
    import torch.distributed as dist
    import rank_program as job
    from ddp_patches import settings
    from ddp_patches.runtime import records, run_folder

    build, dump, write = records.build, records.dump, run_folder.write
    folder, *cases = sys.argv[1:]
    for case in cases:
        chosen = {"none": {"run_dir": "none"}, "read-only": {"run_dir": "/proc/ddp_patches"}}.get(case, {})
        settings.activate(settings.load(os.environ, **chosen))
        if case == "full disk":
            def full(path, ledger):
                raise OSError(errno.ENOSPC, "No space left on device")
            run_folder.write = full
        if case == "hostile" and job.RANK == 1:
            records.build = lambda *a, **k: dict(build(*a, **k), host="evil\x1b[2J\x07host")
        if case == "broken" and job.RANK == 1:
            records.dump = lambda record: "[" * 50000
        if case == "no passwd entry":
            "host".encode("idna")  # is imported when needed, from a folder that root alone may read
            os.environ.pop("HOME", None)
            os.environ.pop("XDG_STATE_HOME", None)
            tempfile.tempdir = folder
            os.setuid(54321)
        job.start(60, folder, case)
        time.sleep(2.5 if case in ("broken", "unpatched") else 1.5)
        job.say(case=case, total=job.total())
        time.sleep(0.2)  # torch 2.0 hangs in a destruction right after a collective
        dist.destroy_process_group()
        records.build, records.dump, run_folder.write = build, dump, write
    """


def start_cases(jobs, cases, count=2, each=None, folder=None):
    arguments = [folder or jobs.folder("job"), *cases]
    return jobs.start("job", RECORDS, count, each=each, arguments=arguments)


def test_every_ranks_record_is_in_the_ledger_and_one_line_says_so(jobs):
    """The start line comes from rank 0, once. Without it ddp_patches is not on."""
    job = start_cases(jobs, ["plain"], 3).wait()
    (line,) = job.lines("is on for")
    assert "is on for 3 of 3 ranks on" in line and "[rank 0, " in line
    (ledger,) = job.ledgers()
    assert ledger["run"] in line and ledger["world_size"] == 3
    assert [record["rank"] for record in ledger["ranks"]] == [0, 1, 2]
    assert [record["pid"] for record in ledger["ranks"]] == [result.pid for result in job.results]
    for record in ledger["ranks"]:
        # Every target of ours in torch exists in every torch, with a signature that fits.
        rows = [row for row in record["patches"] if "distributed_c10d:" in row["target"]]
        assert rows and {row["state"] for row in rows} == {"applied"}, record
        assert {row["state"] for row in record["patches"] if row["package"] == "ultralytics"} == {"waiting"}
        assert record["limits"]["groups"][0]["timeout"] == 7200


def test_a_rank_without_ddp_patches_is_named(jobs):
    """The job ends before rank 0 has given up looking for it: the line comes all the same."""
    job = start_cases(jobs, ["unpatched"], 3, each={2: {"DDP_PATCHES": "0"}}).wait()
    (line,) = job.lines("is on for")
    assert "is on for 2 of 3 ranks (not rank 2) on" in line
    assert [record["rank"] for record in job.ledgers()[0]["ranks"]] == [0, 1]


def test_what_is_wrong_with_a_ledger_or_a_record_costs_one_line(jobs):
    """And training goes on. So it does when a peer's record is none, or would steer the terminal."""
    said = {
        "none": "details: in this log only",  # and the read-only system's
        "read-only": "no run folder, the log has everything: [Errno 2]",
        "full disk": "the run folder is given up, the log has everything: [Errno 28] No space left",
        "hostile": "evil\ufffd[2J\ufffdhost",
        "broken": "is on for 1 of 2 ranks (not rank 1)",
    }
    job = start_cases(jobs, said).wait()
    assert {job.answer(rank, case=case)["total"] for rank in (0, 1) for case in said} == {3.0}
    assert len(job.lines("is on for")) == 5
    assert [len(job.lines(text)) for text in said.values()] == [2, 1, 1, 1, 1], job
    everything = "".join(result.stderr for result in job.results)
    assert "\x1b" not in everything and "Traceback" not in everything, job
    assert [len(ledger["ranks"]) for ledger in job.ledgers()] == [2, 1]


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="root alone can become another user"
)
def test_a_user_without_passwd_entry_and_home_gets_a_folder_in_the_temporary_one(jobs):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        job = start_cases(jobs, ["no passwd entry"], folder=folder).wait()
        assert {job.answer(rank)["total"] for rank in (0, 1)} == {3.0}
        assert len(job.lines("details: ddp-patches status --run")) == 1, job
        assert len(list(pathlib.Path(folder, "ddp_patches-54321").glob("*/ledger.json"))) == 1
