"""`ddp-patches explain` on logs in the form in which torch, its launchers and Slurm leave them.

The logs named after a torch version and `raised`, `killed`, `gloo` and the like are real output of two gloo
ranks; those with `nccl`, `transport`, `scan`, `different` and `slurm` are put together from public reports.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import sys

import pytest

from ddp_patches import settings
from ddp_patches.cli import main
from ddp_patches.engine import catalogue
from ddp_patches.explain import causes, findings, gathering
from support import interpreters

LOGS = pathlib.Path(__file__).parent / "explain_logs"


def explained(*paths):
    collected, problems = gathering.gather([str(path) for path in paths])
    assert problems == []
    return findings.conclude(collected)


def of_text(folder, text, name="train.log"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return explained(path)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("torch2.13-raised.log", "Rank 1 (localhost, 2026-11-30 23:57:19) failed first: ValueError: boom "
                                 "in rank 1"),
        ("torch1.12-raised.log", "A process (the log does not name its rank) failed first: ValueError: boom"),
        ("torch2.13-gloo-timeout.log", "Rank 1 of 2 probably never arrived: rank 0 waited 6s for it"),
        ("torch2.13-monitored-barrier.log", "Rank 1 of 2 never arrived: rank 0 waited 3s"),
        ("torch2.0-unused-parameters.log", "Rank 0 (localhost, 2026-12-01 00:04:08) failed first: "
                                           "parameters without"),
        ("torch2.13-killed.log", "Rank 1 (localhost, 2026-11-30 23:59:11) was ended by signal 9 (SIGKILL)"),
        ("torch2.13-parameters-differ.log", "Ranks 0 and 1 (localhost, 2026-11-30 23:58:17) failed with "
                                            "the same error"),
        ("torch2.0-nccl-training.log", "Rank 3 of 4 probably never arrived: ranks 0, 1 and 2 waited 30m "
                                       "for it in an all"),
        ("torch2.6-nccl-counters.log", "Rank 1 of 4 never arrived: ranks 0, 2 and 3 waited 30m for it in "
                                       "an all-reduce"),
        ("torch1.8-scan.log", "Rank 1 waited 1m7s in an all-reduce and gave up; which rank was missing is"),
        ("torch2.4-transport.log", "Nobody was missing: all 2 ranks were in the same collective"),
        ("torch1.12-different.log", "The ranks were in different collectives: rank 0 in number 7559"),
        ("slurm-4711.out", "Task 2 on n012 was ended by signal 9 (SIGKILL)"),
    ],
)  # fmt: skip
def test_the_first_sentence_is_the_finding(name, start):
    report = explained(LOGS / name)
    assert report.findings[0].sentence.startswith(start)


def test_the_launcher_may_name_the_wrong_rank():
    """torch 1.12's table calls rank 0 the root cause, which only lost its connection."""
    report = explained(LOGS / "torch1.12-raised.log")
    assert report.first_failure.facts["type"] == "ValueError"
    assert report.first_failure.facts["place"].endswith("train.py:11 in main")
    assert report.findings[0].ranks == []


def test_ranks_that_abort_after_a_time_out_are_not_the_failure():
    """The message names the ranks that wait, never the one that is missing."""
    report = explained(LOGS / "torch2.0-nccl-training.log")
    assert [finding.kind for finding in report.findings] == ["missing rank"]
    assert report.verdict.missing == [3] and not report.verdict.is_certain
    assert any("sequence numbers agree" in line for line in report.findings[0].certain)
    assert "mmdet.resample" in [entry.name for entry in report.findings[0].help]


def test_torch_s_counters_make_it_certain_and_its_stack_names_the_line():
    report = explained(LOGS / "torch2.6-nccl-counters.log")
    assert report.verdict.is_certain and report.verdict.missing == [1]
    assert "It was called at /home/user/project/heads/focal_head.py:338 in loss (ranks 0, 2 and 3)." in (
        report.findings[0].certain
    )


def test_a_scan_is_recognised_by_the_progress_bar():
    """Field report 1: the label scan outlives the limit."""
    report = explained(LOGS / "torch1.8-scan.log")
    assert "ultralytics.zero_first" in [entry.name for entry in report.findings[0].help]
    assert any(
        "is rank 0, or one that does not appear in the log" in line for line in report.findings[0].likely
    )


TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:737] [Rank %d] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=%d, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800001 milliseconds before timing out.\n"
)


def test_one_time_out_of_many_ranks_accuses_nobody(tmp_path):
    """The launcher ends the others before they can say that they waited."""
    report = of_text(tmp_path, "DDP: --nproc_per_node 4 train.py\n" + TIMEOUT % (2, 900))
    assert report.verdict.kind == "waited"
    assert "which rank was missing is not in this log" in report.findings[0].sentence


def test_an_exception_before_the_time_outs_is_the_first_failure(tmp_path):
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/home/u/data.py", line 7, in load\n'
        "[rank1]:     raise KeyError(1)\n[rank1]: KeyError: 'bbox'\n"
    )
    report = of_text(tmp_path, text + TIMEOUT % (0, 90))
    assert report.findings[0].sentence.startswith(
        "Rank 1 failed first: KeyError: 'bbox' (/home/u/data.py:7 in load)"
    )
    assert "Rank 0 waited for it in a collective and timed out: a consequence." in report.findings[0].certain


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is "
         "possible", "worker bus error"),
        ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "worker gone"),
        ("Exception: Cannot find valid image after 1000! Please check your image path and "
         "pipeline", "no valid sample"),
        ("[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess GPU 0 to perform barrier as devices used "
         "by this "
         "process are currently unknown.", "guessed device"),
        ("[rank0]:[W1014 18:38:25.32 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been "
         "destroyed before we destruct ProcessGroupNCCL.", "not destroyed"),
        ("[rank3]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be "
         "terminated", "heartbeat"),
        ("[rank3]:[F1014 18:38:25.3 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3] [PG ID 0 PG GUID "
         "0(default_pg) "
         "Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
         "progress", "heartbeat"),
        ("RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
         "use).",
         "address in use"),
        ("torch.distributed.DistNetworkError: ... port: 29622, useIpv6: false, code: -98, name: "
         "EADDRINUSE, message: "
         "address already in use", "address in use"),
        ("RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
         "store_based_barrier_key:1 (world_size=4, worker_count=8, timeout=0:30:00)", "store barrier"),
        ("RuntimeError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
         "key-value "
         "store by key '0', but store->get('0') got error: Socket Timeout", "nccl setup"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 99 got signal: 1",
         "terminal closed"),
        ("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 17 closing signal SIGHUP",
         "terminal closed"),
        ("slurmstepd: error: *** JOB 12 ON n01 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT "
         "***", "time limit"),
        ("[rank1]: RuntimeError: result type Float can't be cast to the desired output type "
         "Long", "integer reduce"),
        ("AssertionError: loss log variables are different across GPUs!", "losses differ"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
         "segmentation fault"),
        ("subprocess.CalledProcessError: Command '['python', '-u', 'train.py', '--local_rank=1']' died with "
         "<Signals.SIGKILL: 9>.", "host memory"),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 1 (pid: "
         "16) of binary",
         "bus error"),
        ("[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:6580",
         "connection lost"),
        ("ddp_patches 2026-11-30 20:56:30 [rank 1, gpu-01, pid 8064] waiting 1m for rank 0 (gpu-01, pid "
         "8063), which is "
         "alive and working: utils/tqdm.py:379 in __iter__. Nothing is wrong so far.", "slow leader"),
        ("ddp_patches 2026-11-30 20:56:30 [rank 0, n012, pid 1] STALL, 5m12s. Rank 2 is missing.", "stall"),
    ],
)  # fmt: skip
def test_one_message_alone_is_understood(tmp_path, text, kind):
    report = of_text(tmp_path, "학습을 시작합니다\n" + text + "\n训练结束\n")
    assert (report.findings + report.notes)[0].kind == kind
    assert report.sources[0].lines == 3


def test_a_report_of_ours_goes_before_what_torch_says(tmp_path):
    ours = "ddp_patches 2026-11-30 20:56:30 [rank 0, n, pid 1] STALL, 5m12s. Rank 2 of 4 is missing.\n"
    report = of_text(tmp_path, ours + TIMEOUT % (0, 900) + TIMEOUT % (1, 900))
    assert report.findings[0].kind == "stall" and len(report.findings) == 2
    assert report.findings[0].sentence.startswith("STALL, 5m12s. Rank 2 of 4 is missing")


def test_an_exception_of_a_loader_worker_is_the_inner_one(tmp_path):
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    next(batches)\n'
        "ValueError: Caught ValueError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "/home/u/dataset.py", line 10, in __getitem__\n'
        "    raise ValueError\nValueError: broken box\n"
    )
    report = of_text(tmp_path, text)
    assert "ValueError: broken box (/home/u/dataset.py:10 in __getitem__)" in report.findings[0].sentence


def test_only_the_last_of_appended_runs_counts(tmp_path):
    start = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    report = of_text(tmp_path, start + TIMEOUT % (0, 5) + TIMEOUT % (1, 5) + start + "all well\n")
    assert report.findings == []
    assert report.sources[0].attempts == 2


def test_exit_codes_text_and_json(tmp_path, capsys):
    (tmp_path / "quiet.log").write_text("epoch 1\nepoch 2\n")
    assert main.main(["explain", str(tmp_path / "quiet.log")]) == 1
    assert "Nothing was found" in capsys.readouterr().out
    assert main.main(["explain", str(tmp_path / "absent.log")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main.main(["explain", "/dev/zero"]) == 2
    capsys.readouterr()
    assert main.main(["explain", "--json", str(LOGS / "torch2.6-nccl-counters.log")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["found"], said["job"]["world_size"]) == (1, True, 4)
    assert said["timeouts"]["missing_ranks"] == [1] and said["timeouts"]["missing_certain"]
    assert {"kind", "sentence", "certain", "likely", "advice", "addressed_by", "evidence"} <= set(
        said["findings"][0]
    )
    assert said["findings"][0]["evidence"][0].keys() == {"file", "line", "text", "rank"}


def test_standard_input_and_gzip(tmp_path):
    text = (LOGS / "torch2.13-killed.log").read_bytes()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text))
    assert explained(tmp_path / "a.log.gz").findings[0].kind == "host memory"
    command = "from ddp_patches.cli import main; import sys; sys.exit(main.main(['explain', '-']))"
    here = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
    pipe = (
        "import subprocess, sys; "
        "sys.exit(subprocess.run([sys.executable, '-c', %r], stdin=open(%r)).returncode)"
    )
    finished = interpreters.run(
        [sys.executable, "-c", pipe % (command, str(LOGS / "torch2.13-killed.log"))], here
    )
    assert finished.code == 0 and finished.out.startswith("Rank 1 (localhost")


def test_every_cause_names_patches_and_settings_that_exist():
    ids = {patch.id for patch in catalogue.load()}
    fields = {row["name"] for row in settings.fields_table()} | {"stall_after"}
    for kind, cause in causes.CAUSES.items():
        assert cause.title and cause.meaning, kind
        for entry in cause.help:
            known = {causes.PATCH: ids, causes.SETTING: fields}.get(entry.what)
            assert known is None or entry.name in known, "%s names %s" % (kind, entry.name)


def test_a_rank_that_was_told_to_have_failed_first(tmp_path):
    """Its own log may be on another node; each of the others has our line before its own error."""
    ours = (
        "ddp_patches 2026-11-30 20:56:30 [rank 0, n, pid 1] Rank 2 (n2, pid 7) failed first, at 20:56:29: "
        "ValueError: no label, at me/data.py:12 in load. What other ranks report is a consequence of that.\n"
    )
    lost = (
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [1.2.3.4]:1\n"
    )
    report = of_text(tmp_path, ours + lost)
    first = report.findings[0]
    assert first.sentence == (
        "Rank 2 (n2, pid 7) failed first, at 20:56:29: ValueError: no label, at me/data.py:12 in load"
    )
    assert (first.kind, first.ranks) == ("exception", [2])
