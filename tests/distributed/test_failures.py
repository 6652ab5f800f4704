"""When one rank fails, its error is what the others' logs and the launcher's last lines begin with."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, ranks

STANDIN = environment.TESTS / "standins" / "rank_zero_first"
FIRST = "failed first, at "
ERROR = "ValueError: no label for image 17"

PROGRAM = """
    import ddp_patches.auto
    import sys, threading, time
    import rank_program as job

    culprit, then = int(sys.argv[1]), sys.argv[2]

    def load():
        raise ValueError("no label for image 17")

    def main():
        job.start()
        job.total()
        if job.RANK == culprit:
            if then == "stays":
                threading.Thread(target=time.sleep, args=(60,)).start()
            load()
        job.total()

    if __name__ == "__main__":
        main()
    """


def environ_of(folder, patched=True):
    environ = environment.clean(folder, STANDIN)
    if patched:
        propagation.arm(environ)
    else:
        environ["DDP_PATCHES"] = "0"
    return environ


def launch(jobs, name, launcher, culprit, patched=True):
    folder, processes = jobs.folder(name), jobs.processes(name)
    program = ranks.script(folder, PROGRAM)
    environ = environ_of(folder, patched)
    if launcher == "torchrun":
        command = ranks.torchrun_command(3, program, culprit, "ends")
    else:
        environ.update(ranks.variables(0, 3, ranks.free_port()))
        command = [sys.executable, STANDIN / "spawning.py", program, culprit, "ends"]
    return processes.start(command, environ)


@pytest.mark.upstream_fault("torch.first_error")
@pytest.mark.parametrize(("launcher", "culprit"), [("torchrun", 1), ("spawn", 0)])
def test_the_launchers_last_lines_name_the_first_failing_rank(jobs, launcher, culprit):
    """Upstream's last lines name a process by number and exit code, or another rank's broken connection."""
    on = launch(jobs, "on", launcher, culprit)
    off = launch(jobs, "off", launcher, culprit, patched=False)
    result = on.wait(120)
    assert result.returncode == off.wait(120).returncode == 1
    last = [line for line in result.stderr.splitlines() if line.strip()][-1]
    assert "Rank %d (" % culprit in last and FIRST in last and ERROR in last, result
    assert "program.py:" in last and "in load" in last and "consequence" in last
    assert FIRST not in off.stderr()
    if launcher == "torchrun":  # its own summary has a rank and an exit code, and no error
        assert ERROR not in off.stderr().rpartition("ChildFailedError")[2], off.stderr()


def test_the_first_error_comes_before_the_consequences(jobs):
    """Also where rank 0, which hosts the store, is the one that fails."""
    for culprit in (0, 1):
        name = "culprit%d" % culprit
        job = jobs.start(name, PROGRAM, 3, arguments=[culprit, "ends"])
        job.wait(check=False)
        for rank in range(3):
            text = job.results[rank].stderr
            assert job.results[rank].returncode == 1, job
            assert "Traceback" in text
            if rank == culprit:
                assert FIRST not in text
            elif FIRST in text:
                assert text.index(ERROR) < text.index("Traceback"), job
        # Whoever lost its connection may have lost the store with it: at least one rank still knew.
        assert any(FIRST in job.results[rank].stderr for rank in range(3) if rank != culprit), job


def test_a_failing_rank_that_stays_alive_ends_the_others(jobs):
    """Its connections are open: over gloo, too, nobody would hear of it for as long as the limit is."""
    folder = jobs.folder("job")
    program = ranks.script(folder, PROGRAM)
    environ = environ_of(folder)
    running = ranks.start(jobs.processes("job"), program, environ, 3, 1, None, [1, "stays"])
    for rank in (0, 2):
        result = running[rank].wait(60)
        assert result.returncode == 1, result
        assert "this rank waits for one that has failed, and ends. Rank 1 (" in result.stderr
        assert ERROR in result.stderr
    assert running[1].popen.poll() is None, "it stays for a minute, its code is its own"
