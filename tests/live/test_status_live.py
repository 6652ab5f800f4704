"""status and probe beside a real torch and real Ultralytics: the truth before, during and after a job."""

from __future__ import annotations

import json
import sys

import pytest

from support import environment, layers
from support.releases import NEWEST_ULTRALYTICS

# One release for each home of the trainer, and for each way in which _setup_ddp is called.
RELEASES = ["8.0.40", "8.2.103", NEWEST_ULTRALYTICS]

# The rows that are read from files, before anything is imported, and those of the same process afterwards.
NO_LAUNCHER = "this process is no launcher that Ultralytics has started"

BEFORE_AND_AFTER = """if True:
    import importlib, json, os, sys
    from ddp_patches import overview
    before = overview.before_a_run(os.environ)
    assert "torch" not in sys.modules and "ultralytics" not in sys.modules

    import ddp_patches
    ddp_patches.enable(propagate=False)
    import torch, torch.distributed, ultralytics
    for row in before.patches:
        for module in row.target.partition(":")[0].split("|"):
            try:
                importlib.import_module(module)
            except ImportError:
                pass
    after = ddp_patches.status()

    def shown(status):
        return [[row.id, row.target.partition(":")[2], row.state, row.verdict, row.reason, row.version]
                for row in status.patches]
    print(json.dumps({"before": shown(before), "after": shown(after), "text": str(after)}))
"""


@pytest.mark.parametrize("version", RELEASES)
def test_what_is_foretold_is_what_happens(processes, tmp_path, version):
    """Every patch on every target: the same verdict, reason and version, and `would apply` comes true."""
    environ = layers.ultralytics_environment(tmp_path, version)
    found = processes.run([sys.executable, "-c", BEFORE_AND_AFTER], environ, limit=240).check().answer
    before, after = ({(row[0], row[1]): row[2:] for row in found[key]} for key in ("before", "after"))
    assert before.keys() == after.keys()
    for key, (state, verdict, reason, package_version) in before.items():
        if after[key][2] == NO_LAUNCHER:
            assert state == "waiting", key  # for a process that is one
        elif state == "waiting":
            assert after[key] == ["applied", verdict, reason, package_version], key
        elif reason.startswith("there is no module") or reason.endswith("is not installed"):
            # Neither this release nor this installation has it: no import of it comes to be judged.
            assert after[key][0] == "waiting", key
        else:
            assert after[key] == [state, verdict, reason, package_version], key
    applied = {key[0] for key, row in after.items() if row[0] == "applied"}
    assert {"torch.process_group_timeout", "ultralytics.zero_first", "ultralytics.setup_ddp"} <= applied
    assert "distributed_c10d is not imported" not in " ".join(found["text"].split())


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_the_command_imports_no_framework(processes, tmp_path):
    program = """if True:
        import sys
        from ddp_patches.cli import main
        assert main.main(["status"]) == 0
        assert main.main(["status", "--json"]) == 0
        heavy = ("torch", "ultralytics", "cv2", "numpy", "wrapt")
        print([name for name in heavy if name in sys.modules])
    """
    environ = layers.ultralytics_environment(tmp_path, NEWEST_ULTRALYTICS)
    result = processes.run([sys.executable, "-c", program], environ).check()
    assert result.stdout.splitlines()[-1] == "[]"
    assert "ultralytics  %s" % NEWEST_ULTRALYTICS in result.stdout


# Each rank prints what it knows of itself, when rank 0 has written the ledger.
RANK = """
import datetime, glob, json, os, time
import torch.distributed as dist
import ddp_patches

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
dist.barrier()
ledgers = os.path.join(os.environ["XDG_STATE_HOME"], "ddp_patches", "*", "ledger.json")
deadline = time.monotonic() + 40
def ranks_in_ledger():
    return [len(json.load(open(path))["ranks"]) for path in glob.glob(ledgers)]
while ranks_in_ledger() != [2] and time.monotonic() < deadline:
    time.sleep(0.2)
folder = os.environ["ANSWERS"]
with open(os.path.join(folder, os.environ["RANK"] + ".json"), "w") as file:
    json.dump(ddp_patches.status().as_dict(), file)
dist.barrier()
dist.destroy_process_group()
"""


def test_every_rank_of_a_job_is_in_its_ledger_and_knows_its_own(processes, tmp_path):
    """The group's limit, who set it, and that each of two ranks has every torch patch."""
    script = tmp_path / "train.py"
    script.write_text(RANK, encoding="utf-8")
    environ = environment.clean(tmp_path, DDP_PATCHES_TIMEOUT="3h", ANSWERS=str(tmp_path))
    command = [sys.executable, "-m", "ddp_patches", "run", "--"]
    command += [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        script,
    ]
    processes.run(command, environ, limit=200, name="job").check()

    for rank in (0, 1):
        own = json.loads((tmp_path / ("%d.json" % rank)).read_text(encoding="utf-8"))
        assert [(r["rank"], r["local_rank"]) for r in own["ranks"]] == [(rank, rank)]
        assert own["limits"]["launcher"]["name"] == "torchrun"
        assert own["limits"]["groups"][0]["timeout"] == 10800.0
        assert "ddp_patches" in own["limits"]["groups"][0]["set_by"]
        assert own["settings"]["timeout"] == {"value": 10800.0, "source": "environment", "text": "3h"}

    status = [sys.executable, "-m", "ddp_patches", "status", "--run", "newest"]
    found = json.loads(processes.run([*status, "--json"], environ).check().stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    for rank in found["ranks"]:
        # What is in launchers alone waits in a rank.
        rows = [row for row in rank["patches"] if "distributed_c10d:" in row["target"]]
        assert rows and {row["state"] for row in rows} == {"applied"}
        assert rank["host"]
        assert rank["pid"]
    assert found["run"]["world_size"] == 2
    text = " ".join(processes.run(status, environ).check().stdout.split())
    assert "on for 2 of 2 ranks on 1 host" in text
    assert "3h, set by ddp_patches" in text


def test_workers_of_a_loader_and_of_torchrun_are_armed(processes, tmp_path):
    """Promise 8, for the children that need torch."""
    command = [sys.executable, "-m", "ddp_patches", "probe", "--json"]
    result = processes.run(command, environment.clean(tmp_path), limit=240).check()
    rows = {row["kind"]: row for row in json.loads(result.stdout)["processes"]}
    assert rows["loader"]["engine"] == "on"
    assert "torch.process_group_timeout" in rows["loader"]["applied"]
    assert rows["torchrun"]["armed"]
    assert rows["torchrun"]["rank"] == "0"


def test_ranks_of_a_given_torchrun_are_armed(processes, tmp_path):
    command = [sys.executable, "-m", "ddp_patches", "probe", "--json", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    result = processes.run(command, environment.clean(tmp_path), limit=200).check()
    rows = json.loads(result.stdout)["processes"]
    assert [(row["rank"], row["armed"]) for row in rows] == [("0", True), ("1", True)]
