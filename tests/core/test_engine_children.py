"""Replacements travel to other processes as upstream's functions do (promises 6 and 8).

They are pickled by reference, so each process uses its own: the patched one's replacement, the unpatched
one's original. A program has to be a file here, since spawn imports it again.
"""

from __future__ import annotations

import sys

import pytest

from support import environment, interpreters, made_up

METHODS = ["spawn", "forkserver", "fork"] if sys.platform != "win32" else ["spawn"]

PROGRAM = """
import multiprocessing, pickle, sys
import ddp_patches

def ask(pickled, queue):
    work, worker = pickle.loads(pickled)
    queue.put([work(1), worker(None, 1), getattr(work, "__ddp_patches__", None)])

if __name__ == "__main__":
    import framework_patches
    method, propagate, first = sys.argv[1:]
    if first == "framework":
        import framework.user
    ddp_patches.enable(propagate=propagate)
    import framework.user
    assert framework.user.work(1).startswith("patched")
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    pickled = pickle.dumps([framework.user.work, framework.work.Worker.work])
    process = context.Process(target=ask, args=(pickled, queue))
    process.start()
    print(queue.get(timeout=30))
    process.join(30)
    print(process.exitcode)
"""

# Our own patches need no such thing: the catalogue of a child knows them by itself.
SITE = "import framework_patches\n"


@pytest.fixture
def folder(tmp_path):
    made_up.write_files(tmp_path, {"program.py": PROGRAM, "sitecustomize.py": SITE})
    return made_up.write(tmp_path)


def run(folder, *arguments):
    command = [sys.executable, "program.py", *arguments]
    finished = interpreters.run(command, environment.clean(folder, folder), folder)
    assert (finished.code, finished.err) == (0, ""), finished.out + finished.err
    return finished.out.splitlines()


PATCHED = ["['patched, upstream did 1', \"patched, upstream's worker did 1\", 'framework.work']", "0"]
UPSTREAM = ["['upstream did 1', \"upstream's worker did 1\", None]", "0"]


@pytest.mark.parametrize("first", ["ddp_patches", "framework"])
@pytest.mark.parametrize("method", METHODS)
def test_a_patched_child_uses_its_own_replacement(folder, method, first):
    assert run(folder, method, "on", first) == PATCHED


@pytest.mark.parametrize("method", [method for method in METHODS if method != "fork"])
def test_an_unpatched_child_uses_upstreams_function(folder, method):
    assert run(folder, method, "off", "ddp_patches") == UPSTREAM


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
def test_pickles_name_upstreams_function_and_carry_none_of_our_code(folder, pickler):
    """Read back with patches on, after `disable()`, and in a process without ddp_patches."""
    pytest.importorskip(pickler)
    (folder / "sitecustomize.py").unlink()
    program = """
        import pickle, subprocess, sys, ddp_patches, framework_patches, %s as pickler
        ddp_patches.enable(propagate=False)
        import framework.user
        held = [framework.user.work, framework.work.Worker.work, framework.work.Worker().work]
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            text = pickler.dumps(held, protocol=protocol)
            assert b"ddp_patches" not in text
            work, method, _ = pickle.loads(text)
            assert work is framework.user.work and method is framework.work.Worker.work
        ddp_patches.disable()
        assert pickle.loads(text)[0] is framework.user.work
        print(pickle.loads(text)[2](2))
        read = "import pickle, sys; print([f.__name__ for f in pickle.load(sys.stdin.buffer)]);"
        read += "print('ddp_patches' in sys.modules)"
        subprocess.run([sys.executable, "-c", read], input=text, check=True)
    """
    assert made_up.lines(folder, program % pickler, PYTHONUNBUFFERED="1") == [
        "upstream's worker did 2",
        "['work', 'work', 'work']",
        "False",
    ]
