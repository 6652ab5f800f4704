"""`ddp-patches status` as people and programs run it: before a run, and for a job that left its ledger."""

from __future__ import annotations

import json
import sys

import pytest

from ddp_patches.cli import status
from support import environment, interpreters, made_up

# Importing one of these would end the command: status must look without importing.
TRAP = "raise SystemExit('it was imported')\n"
FRAMEWORKS = {
    "torch/__init__.py": TRAP,
    "torch/version.py": "__version__ = '2.99.0+cpu'\n",
    "torch/distributed/__init__.py": TRAP,
    "torch/distributed/distributed_c10d.py": TRAP + """
def barrier(group=None, async_op=False, device_ids=None, timeout=None): ...
def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None,
                       group_name="", pg_options=None): ...
def new_group(ranks, timeout, needs_this): ...
""",
    "ultralytics/__init__.py": "__version__ = '8.4.150'\n" + TRAP,
}  # fmt: skip


@pytest.fixture
def machine(tmp_path):
    """A folder with a torch and an Ultralytics that must not be imported."""
    site = tmp_path / "site"
    made_up.write_files(site, FRAMEWORKS)
    return site


def run(folder, *words, path=(), limit_s=60, **variables):
    command = [sys.executable, "-m", "ddp_patches", "status", *words]
    environ = environment.clean(folder, *path, **variables)
    return interpreters.run(command, environ, folder, limit_s=limit_s)


def answer(folder, *words, **given):
    finished = run(folder, *words, "--json", **given)
    assert (finished.code, finished.err) == (0, "")
    return json.loads(finished.out)


def test_before_a_run_nothing_is_imported_and_all_is_known(tmp_path, machine):
    found = answer(tmp_path, path=[machine], DDP_PATCHES_TIMEOUT="3h", TORCH_NCCL_BLOCKING_WAIT="1")
    assert found["packages"]["torch"]["version"] == "2.99.0+cpu"
    assert found["packages"]["ultralytics"]["version"] == "8.4.150"
    rows = {(row["id"], row["target"].partition(":")[2]): row for row in found["patches"]}
    assert rows["torch.barrier_device_ids", "barrier"]["state"] == "waiting"
    assert rows["torch.barrier_device_ids", "barrier"]["verdict"] == "compatible"
    changed = rows["torch.process_group_timeout", "new_group"]
    assert (changed["state"], changed["verdict"]) == ("skipped", "changed")
    assert "needs_this" in changed["reason"]
    assert all(row["verdict"] == "absent" for (id, _), row in rows.items() if id.startswith("ultralytics."))
    assert all(row["reason"] for row in found["patches"])
    assert found["settings"]["timeout"] == {"value": 10800.0, "source": "environment", "text": "3h"}
    assert found["limits"]["blocking_wait"]["variables"] == {"TORCH_NCCL_BLOCKING_WAIT": "1"}
    assert found["ranks"] == []
    assert found["newest_run"] is None


def test_text_says_the_same_in_100_columns(tmp_path, machine):
    finished = run(tmp_path, path=[machine], DDP_PATCHES_TIMEOUT="soon", DDP_PATCHES_TIMOUT="1h")
    assert (finished.code, finished.err) == (0, "")
    assert max(map(len, finished.out.splitlines())) <= 100
    text = " ".join(finished.out.split())
    assert "torch.process_group_timeout skipped changed new_group: its signature" in text
    assert "DDP_PATCHES_TIMEOUT='soon'" in text
    assert "did you mean DDP_PATCHES_TIMEOUT?" in text
    assert "python -E, -I and -S" in text
    assert "not installed: yolov5, mmdet, mmdet3d, mmengine, mmcv" in text


def test_without_any_framework(tmp_path):
    """On a laptop without torch, or in the wrong environment: the most common reason of all."""
    if interpreters.run([sys.executable, "-c", "import torch"], environment.clean(tmp_path)).code == 0:
        pytest.skip("this Python has a torch")
    finished = run(tmp_path)
    assert finished.code == 0
    assert "No framework is installed in this Python" in finished.out


def test_an_armed_process_looks_without_consequences(tmp_path, machine):
    """`status` in a shell that has `eval "$(ddp-patches env)"`: its own finder must not start anything."""
    from ddp_patches import propagation

    environ = environment.clean(tmp_path, machine)
    propagation.arm(environ)
    finished = interpreters.run([sys.executable, "-m", "ddp_patches", "status", "--json"], environ, tmp_path)
    assert (finished.code, finished.err) == (0, "")
    assert json.loads(finished.out)["packages"]["torch"]["version"] == "2.99.0+cpu"


def test_off_and_skip_are_the_reasons(tmp_path, machine):
    found = answer(tmp_path, path=[machine], DDP_PATCHES="0")
    assert {row["state"] for row in found["patches"]} == {"skipped"}
    assert found["warnings"][0]["id"] == "off"
    found = answer(tmp_path, path=[machine], DDP_PATCHES_SKIP="torch.barrier*,torch.tear")
    reasons = {row["id"]: row["reason"] for row in found["patches"]}
    assert reasons["torch.barrier_device_ids"] == "the setting skip names it"
    assert any("torch.tear" in warning["message"] for warning in found["warnings"])


def test_strict_does_not_silence_the_overview(tmp_path, machine):
    found = answer(tmp_path, path=[machine], DDP_PATCHES_STRICT="1", DDP_PATCHES_TIMEOUT="soon")
    assert any("'soon'" in warning["message"] for warning in found["warnings"])


def test_a_launcher_of_another_python_is_pointed_out(tmp_path, machine):
    """The second most common reason: `yolo` on PATH is that of the system."""
    other = tmp_path / "other"
    python = interpreters.venv(other)
    (other / "bin" / "yolo").write_text("#!%s\n" % python, encoding="utf-8")
    (other / "bin" / "yolo").chmod(0o755)
    path = str(other / "bin")
    found = answer(tmp_path, path=[machine], PATH=path)
    assert any(w["id"] == "program" and str(other) in w["message"] for w in found["warnings"])


LEDGER = {
    "run": "",
    "started": "2026-01-01T00:00:00+0000",
    "world_size": 2,
    "launcher": "torchrun",
    "settings": {"timeout": {"value": 7200.0, "source": "default"}},
    "limits": {"groups": [], "changes": []},
    "ranks": [
        {"rank": rank, "local_rank": rank, "host": "h", "pid": rank + 1,
         "patches": [{"id": "a.b", "state": "applied", "verdict": "tested", "reason": "r", "package": "torch",
                      "version": "2", "target": "t:f"}]}
        for rank in (0, 1)
    ],
}  # fmt: skip


@pytest.fixture
def jobs(tmp_path):
    """Two jobs that have left their ledgers where the tests' environment puts them; ids, newest first."""
    ids = ["20260102-000000-bbbbbb", "20260101-000000-aaaaaa"]
    for run_id in ids:
        folder = tmp_path / "state" / "ddp_patches" / run_id
        folder.mkdir(parents=True)
        (folder / "ledger.json").write_text(json.dumps({**LEDGER, "run": run_id}), encoding="utf-8")
    return ids


def test_a_job_shows_every_rank(tmp_path, jobs):
    found = answer(tmp_path, "--run", jobs[1])
    assert found["run"]["run"] == jobs[1]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["ranks"][0]["patches"][0]["id"] == "a.b"
    assert found["patches"][0]["state"] == "applied"
    assert found["settings"]["timeout"]["value"] == 7200.0
    assert answer(tmp_path, "--run", "newest")["run"]["run"] == jobs[0]
    text = run(tmp_path, "--run", "newest").out
    assert "Run %s" % jobs[0] in text
    assert "on for 2 of 2 ranks" in " ".join(text.split())


def test_a_job_says_what_has_changed_as_it_is_said_before_a_run(tmp_path, jobs, machine):
    """The ranks do not read sources. Of another version than the job had nothing is said."""
    (before,) = [
        row["reason"]
        for row in answer(tmp_path, path=[machine])["patches"]
        if (row["id"], row["verdict"]) == ("torch.process_group_timeout", "changed")
    ]
    in_the_ledger, since, difference = before.partition("; since ")
    assert since and "was (ranks=None" in difference
    target = "torch.distributed.distributed_c10d:new_group"
    row = {"id": "torch.process_group_timeout", "state": "skipped", "verdict": "changed",
           "reason": in_the_ledger, "package": "torch", "target": target}  # fmt: skip
    for version, said in (("2.99.0+cpu", before), ("2.98.0+cpu", in_the_ledger), ("", in_the_ledger)):
        ranks = [{**rank, "patches": [{**row, "version": version}]} for rank in LEDGER["ranks"]]
        path = tmp_path / "state" / "ddp_patches" / jobs[0] / "ledger.json"
        path.write_text(json.dumps({**LEDGER, "run": jobs[0], "ranks": ranks}), encoding="utf-8")
        (found,) = answer(tmp_path, "--run", "newest", path=[machine])["patches"]
        assert found["reason"] == said
    assert answer(tmp_path, "--run", "newest")["patches"][0]["reason"] == in_the_ledger


def test_a_job_shows_its_stall_reports(tmp_path, jobs):
    folder = tmp_path / "state" / "ddp_patches" / jobs[0]
    for minute in range(5):
        report = {"time": "2026-01-01T00:0%d:00" % minute, "seconds": 60.0 * minute, "kind": "loader",
                  "severity": "failure", "missing": [2], "sentence": "Rank 2 is missing, %d." % minute,
                  "ranks": [{"stack": ["x"]}]}  # fmt: skip
        (folder / ("stall-000%d00.json" % minute)).write_text(json.dumps(report), encoding="utf-8")
    (folder / "stall-000900.json").write_text("{", encoding="utf-8")
    found = answer(tmp_path, "--run", "newest")["run"]["stalls"]
    assert [stall["sentence"] for stall in found] == ["Rank 2 is missing, %d." % n for n in range(5)]
    assert found[0]["missing"] == [2] and found[0]["path"].endswith("stall-000000.json")
    text = run(tmp_path, "--run", "newest").out
    assert "Stall reports" in text and "2 earlier ones" in text and "Rank 2 is missing, 4." in text
    assert answer(tmp_path, "--run", jobs[1])["run"]["stalls"] == []


def test_jobs_are_listed_newest_first_and_the_newest_is_named_before_a_run(tmp_path, jobs):
    assert [row["run"] for row in answer(tmp_path, "--runs")["runs"]] == jobs
    assert [line.split()[0] for line in run(tmp_path, "--runs").out.splitlines()[::2]] == jobs
    assert answer(tmp_path)["newest_run"]["run"] == jobs[0]
    assert "ddp-patches status --run %s" % jobs[0] in run(tmp_path).out


def test_an_unknown_job_is_an_error_that_helps(tmp_path, jobs):
    finished = run(tmp_path, "--run", "20250101-000000-cccccc")
    assert (finished.code, finished.out) == (1, "")
    assert jobs[0] in finished.err
    assert run(tmp_path, "--run", "../../etc").code == 1


def test_where_no_job_has_run(tmp_path):
    finished = run(tmp_path, "--run", "newest")
    assert (finished.code, finished.err) == (1, "ddp-patches: no job has left a ledger\n")
    finished = run(tmp_path, "--runs")
    assert (finished.code, finished.out) == (0, "No job has left a ledger yet.\n")


def test_a_damaged_ledger_is_an_error_and_hides_no_other_job(tmp_path, jobs):
    (tmp_path / "state" / "ddp_patches" / jobs[0] / "ledger.json").write_text("{", encoding="utf-8")
    assert run(tmp_path, "--run", jobs[0]).code == 1
    assert [row["run"] for row in answer(tmp_path, "--runs")["runs"]] == jobs[1:]
    assert run(tmp_path).code == 0


def test_help_has_examples(capsys):
    from ddp_patches.cli import main

    with pytest.raises(SystemExit):
        main.main(["status", "--help"])
    text = capsys.readouterr().out
    assert "ddp-patches status --run newest" in text
    assert status.HELP in text.replace("\n", " ")
