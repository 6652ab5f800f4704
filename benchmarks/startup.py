"""What a Python that never imports torch pays for our bootstrap: CPU time of ``python -c pass``.

    python benchmarks/startup.py [rounds]

Bare and armed interpreters are started in turn, so that both see the same load of the machine, and the
medians are compared. The promise is less than 1 ms of CPU; the noise of one start is several times that,
hence the many rounds. CPU time is user and system time of the child, as the kernel counts it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import venv

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_patches import propagation

ROUNDS = 200


def cpu_milliseconds(command: list[str], environ: dict[str, str]) -> float:
    """User and system time of one run of ``command``."""
    child = os.posix_spawn(command[0], command, environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{command} ended with status {status}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        # An empty environment: the .pth files of a full one cost more than what is measured here.
        venv.create(folder, symlinks=True)
        command = [os.path.join(folder, "bin", "python"), "-c", "pass"]
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DDP_"))}
        armed = dict(bare)
        propagation.arm(armed)
        major, minor = sys.version_info[:2]
        prefix = os.path.realpath(folder)
        armed[propagation.ARMED] = f"{major}.{minor}|{prefix}|{propagation.PACKAGE_DIRECTORY}"
        kinds = {"bare": bare, "armed": armed, "switched off": {**armed, "DDP_PATCHES": "0"}}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for round_ in range(rounds + 5):
            for kind, environ in kinds.items():
                spent = cpu_milliseconds(command, environ)
                if round_ >= 5:  # the first rounds write bytecode and fill the file cache
                    times[kind].append(spent)
    base = statistics.median(times["bare"])
    print(f"Python {sys.version.split()[0]}, {rounds} rounds, median CPU time of 'python -c pass'")
    for kind, values in times.items():
        middle = statistics.median(values)
        print(f"{kind:>13}: {middle:6.2f} ms   {middle / base:5.2f} x bare   {middle - base:+6.2f} ms")


if __name__ == "__main__":
    main()
