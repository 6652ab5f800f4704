"""Loader workers of a rank that torchrun has ended, where they cannot notice it themselves."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, ranks

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
STANDIN = environment.TESTS / "standins" / "rank_zero_first"

PROGRAM = """
    import os, signal, subprocess, sys, time
    import rank_program as job
    import torch

    worker = os.path.join(sys.argv[1], "worker")

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            with open(worker + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(worker + ".new", worker)
            if sys.argv[2] == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                time.sleep(0.1)

    if __name__ == "__main__":
        if job.RANK == 1:
            daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
            job.say(daemon=daemon.pid)
            next(iter(torch.utils.data.DataLoader(Samples(), num_workers=1)))
        job.wait_for(worker)
        time.sleep(1)
        sys.exit(3)
    """


def start(jobs, name, how, skip=""):
    folder = jobs.folder(name)
    environ = environment.clean(folder, STANDIN, DDP_PATCHES_SKIP=skip)
    propagation.arm(environ)
    command = ranks.torchrun_command(2, ranks.script(folder, PROGRAM), folder, how)
    return jobs.processes(name).start(command, environ, "torchrun")


def left_of(running, folder):
    """What is left after torchrun: its result, whether the worker is there, whether the daemon is."""
    result = running.wait(60).check(1)
    (daemon,) = [answer["daemon"] for answer in result.answers]
    worker = int((folder / "worker").read_text())
    assert set(result.leftovers) <= {worker, daemon}, result
    return result, worker in result.leftovers, daemon in result.leftovers


@pytest.mark.upstream_fault("torch.loader_workers")
def test_a_stopped_worker_ends_with_the_launch(jobs):
    """What has a session of its own is left alone. Without the patch the worker stays as well."""
    on, off = start(jobs, "on", "stops"), start(jobs, "off", "stops", "torch.loader_workers")
    result, worker, daemon = left_of(on, jobs.folder("on"))
    assert (worker, daemon) == (False, True), result
    assert "ended what ranks had left behind: pid " in result.stderr
    result, worker, daemon = left_of(off, jobs.folder("off"))
    assert (worker, daemon) == (True, True), result


def test_a_worker_that_does_not_come_back_from_a_sample_ends_with_the_launch(jobs):
    """Newer releases of torch end the rank's whole process group, older ones the rank alone."""
    result, worker, daemon = left_of(start(jobs, "on", "loops"), jobs.folder("on"))
    assert (worker, daemon) == (False, True), result
