"""``collect_results_cpu`` of real mmengine, mmcv and mmdet on two gloo ranks with folders of their own.

Folders that are not shared are those of two working directories.
"""

from __future__ import annotations

import pytest

from support import environment, layers, ranks
from support.processes import Processes

PLACES = [
    ("mmdet/3.3.0", "mmengine.dist"),
    ("mmdet/3.0.0", "mmengine.dist"),
    ("mmdet/2.28.2", "mmcv.engine"),
    ("mmdet/2.28.2", "mmdet.apis.test"),
]

PROGRAM = """
    import datetime, importlib, json, os, pathlib, sys, time, warnings
    warnings.simplefilter("ignore")
    import ddp_patches.auto
    import torch, torch.distributed as dist

    collect = importlib.import_module(sys.argv[1]).collect_results_cpu
    rank = int(os.environ["RANK"])
    here = pathlib.Path.cwd()
    own = here / ("node%d" % rank)
    own.mkdir()
    os.chdir(own)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))

    def number():
        return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()

    def run(case, tmpdir):
        began, before = time.time(), number()
        answer = {"case": case, "collected": None, "next": None}
        try:
            answer["collected"] = collect([rank, rank + 2], 3, tmpdir)
            answer["collectives"] = number() - before
        except Exception as error:
            answer["error"], answer["text"] = type(error).__name__, str(error)
        # Upstream's ranks go on: to the broadcast of the metrics, or to whatever handles the exception.
        if "error" not in answer:
            try:
                dist.barrier()
                answer["next"] = "passed"
            except RuntimeError:
                answer["next"] = "timed out"
        answer["ended"] = time.time()
        print(json.dumps(answer), flush=True)
        (here / ("%s.%d" % (case, rank))).touch()
        while not (here / ("%s.%d" % (case, 1 - rank))).exists():  # nobody ends because the other has
            time.sleep(0.05)

    folders = {"shared": str(here / "shared"), "relative": "parts", "unnamed": None}
    for case in sys.argv[2:]:
        run(case, folders[case.rstrip("2")])
    print(json.dumps({"case": "files", "left": sorted(str(p.relative_to(own)) for p in own.rglob("*")),
                      "shared": (here / "shared").exists()}), flush=True)
    os._exit(0)
    """


@pytest.fixture
def collect(tmp_path):
    """Start two ranks that collect results in the cases named."""
    started = []

    def start(name, release, module, cases, each=None):
        folder = tmp_path / name
        folder.mkdir()
        processes = Processes(folder)
        started.append(processes)
        environ = environment.clean(
            folder, environment.CPU_VISION, layers.layer(release), DDP_PATCHES_TIMEOUT="keep"
        )
        return ranks.start(processes, PROGRAM, environ, each=each, arguments=[module, *cases])

    yield start
    for processes in started:
        processes.end()


def answers(running, limit=150):
    """What each rank said of each case."""
    return [{answer["case"]: answer for answer in result.check().answers} for result in running.wait(limit)]


def is_explained(text, folder):
    """Whether a message says who, where and what to do."""
    return (
        "rank 0 on " in text
        and "does not find the parts of 1 of 2 ranks in " in text
        and "  rank 1 on " in text
        and ("node1/" + folder) in text
        and ("node0/" + folder) in text
        and ("collect_device='gpu'" in text or "gpu_collect=True" in text)
    )


@pytest.mark.upstream_fault("mmengine.collect_results")
@pytest.mark.parametrize(("release", "module"), PLACES)
def test_a_folder_that_is_not_shared_fails_on_all_ranks_at_once(collect, release, module):
    """Upstream: rank 0 raises, the other rank has gone on to its next collective and waits there."""
    off = {rank: {"DDP_PATCHES": "0"} for rank in range(2)}
    upstream = answers(collect("upstream", release, module, ["shared", "relative"], off))
    assert (upstream[0]["relative"]["error"], upstream[1]["relative"]["next"]) == (
        "FileNotFoundError",
        "timed out",
    )
    ours = answers(collect("ours", release, module, ["shared", "relative", "shared2"]))
    for rank in range(2):
        answer = ours[rank]["relative"]
        assert (answer["error"], answer["text"]) == ("FolderNotShared", ours[0]["relative"]["text"])
        assert is_explained(answer["text"], "parts"), answer["text"]
        # As upstream in a folder that is shared, in every collective; also after a failure.
        for case in ("shared", "shared2"):
            for name in ("collected", "collectives", "next"):
                assert ours[rank][case][name] == upstream[rank]["shared"][name], (case, name)
        assert ours[rank]["files"] == {"case": "files", "left": ["parts"], "shared": False}
    assert ours[0]["shared"]["collected"] == [0, 1, 2]
    assert ours[1]["shared"]["next"] == "passed"


@pytest.mark.release(name=PLACES[0][0])
def test_a_folder_that_was_not_named_lies_in_each_ranks_working_directory(collect):
    """Upstream: rank 1 fails before the barrier, and rank 0 waits in it."""
    off = {rank: {"DDP_PATCHES": "0"} for rank in range(2)}
    upstream = collect("upstream", *PLACES[0], ["unnamed"], off)
    ours = answers(collect("ours", *PLACES[0], ["unnamed", "shared"]))
    upstream = answers(upstream)
    assert upstream[1]["unnamed"]["error"] == "FileNotFoundError"
    assert upstream[0]["unnamed"]["error"] != "FileNotFoundError"
    assert upstream[0]["unnamed"]["ended"] - upstream[1]["unnamed"]["ended"] > 5  # of a limit of 10
    for rank in range(2):
        assert ours[rank]["unnamed"]["error"] == "FolderNotShared"
        assert is_explained(ours[rank]["unnamed"]["text"], ".dist_test")
        assert ours[rank]["shared"]["next"] == "passed"
    assert "cannot write there: FileNotFoundError" in ours[0]["unnamed"]["text"]
    assert ours[0]["files"]["left"] == [".dist_test"]
    assert ours[1]["files"]["left"] == []


@pytest.mark.parametrize("without", [0, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.release(name=PLACES[0][0])
def test_a_job_in_which_one_rank_is_without_the_patch_runs_as_upstream(collect, without):
    each = {without: {"DDP_PATCHES": "0"}}
    mixed = answers(collect("mixed", *PLACES[0], ["shared", "relative"], each))
    assert mixed[0]["shared"]["collected"] == [0, 1, 2]
    assert mixed[1]["shared"]["next"] == "passed"
    assert mixed[0]["relative"]["error"] == "FileNotFoundError"
    assert mixed[1]["relative"]["next"] == "timed out"
