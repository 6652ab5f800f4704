"""What every process that ``ddp-patches probe`` starts runs: it says whether it is armed.

Started by its path, as a program, and imports nothing of ddp_patches: what is loaded here must have come
through the environment. Standard library only.

    probe_child.py TOKEN FOLDER [KIND]

Without KIND this process answers for itself; with one it starts a child of that kind, which answers.
"""

import json
import os
import socket
import sys

MARK = "ddp_patches-probe"
_HERE = os.path.dirname(os.path.abspath(__file__))
_BOOTSTRAP = os.path.join(os.path.dirname(_HERE), "bootstrap")
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def facts():
    """What is to be known of this process; nothing is imported to find it out."""
    finder = sys.modules.get("ddp_patches._finder")
    # The bootstrap's finder, or the one of the module that takes its place.
    waiting = any("waits_for_torch" in vars(type(each)) for each in sys.meta_path)
    started = bool(getattr(finder, "_engine_started", False))
    ledger = sys.modules.get("ddp_patches.engine.ledger")
    applied = [row.id for row in ledger.rows() if row.state == "applied"] if ledger is not None else []
    switches = [("-I", sys.flags.isolated), ("-E", sys.flags.ignore_environment), ("-S", sys.flags.no_site)]
    return {
        "armed": waiting or started,
        "engine": "on" if started else "waiting for torch" if waiting else "",
        "applied": sorted(set(applied)),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "rank": _first(_RANKS),
        "world_size": _first(_SIZES),
        "python": sys.executable or "",
        "version": "%d.%d" % sys.version_info[:2],
        "prefix": os.path.realpath(sys.prefix),
        "switches": [name for name, on in switches if on],
        "off": os.environ.get("DDP_PATCHES", ""),
        "marker": os.environ.get("DDP_PATCHES_ARMED", ""),
        "on_path": _BOOTSTRAP in os.environ.get("PYTHONPATH", "").split(os.pathsep),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None) or "",
    }


def _first(names):
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    return ""


def answer(token, folder):
    """Print the facts on one line, and leave them in ``folder`` where a launcher keeps output to itself."""
    text = json.dumps(facts())
    # One write, so that the lines of several ranks do not run into each other; on a line of its own.
    os.write(1, ("\n%s:%s %s\n" % (MARK, token, text)).encode("ascii"))
    if os.path.isdir(folder):  # not on another machine
        try:
            name = "%s-%d.json" % (socket.gethostname(), os.getpid())
            with open(os.path.join(folder, name + ".part"), "w") as file:
                file.write(text)
            os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))
        except OSError:
            pass


class _Samples:
    """A data set of one sample, whose loader worker answers."""

    def __init__(self, token, folder):
        self._arguments = (token, folder)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        if index:
            raise IndexError(index)
        answer(*self._arguments)
        return 0


def start(kind, token, folder):
    """Start one child of ``kind`` and wait for it."""
    if kind == "loader":
        from torch.utils.data import DataLoader

        list(DataLoader(_Samples(token, folder), num_workers=1, batch_size=None))
        return
    import multiprocessing

    child = multiprocessing.get_context(kind).Process(target=answer, args=(token, folder))
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    # This folder holds modules of ours with common names; it came here only because the program lies in it.
    if sys.path and os.path.abspath(sys.path[0]) == _HERE:
        del sys.path[0]
    if len(sys.argv) > 3:
        start(sys.argv[3], sys.argv[1], sys.argv[2])
    else:
        answer(sys.argv[1], sys.argv[2])
