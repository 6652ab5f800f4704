"""The end of a process: our steps come after the user's threads, on every path, and change no exit code."""

from __future__ import annotations

import signal
import sys

import pytest

from support import interpreters

PROGRAM = """
import os, sys, threading, time
from ddp_patches.runtime import closing

def line(text):
    os.write(1, (text + "\\n").encode())

closing.at_end("a", lambda: line("first added"))
closing.at_end("b", lambda: line("last added"))
closing.at_end("c", lambda: line("never"))()
import atexit
atexit.register(line, "atexit")
"""


def run(body, **variables):
    environ = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT), **variables)
    return interpreters.run([sys.executable, "-c", PROGRAM + body], environ)


STEPS = ["last added", "first added", "atexit"]


@pytest.mark.parametrize(
    "body, code",
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(4)", 4),
        ("raise ValueError('user')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os._exit(5)", 5),
    ],
)
def test_exit_codes_are_kept(body, code):
    result = run(body)
    assert result.code == code
    assert result.out.splitlines() == ([] if "_exit" in body else STEPS)


def test_the_users_threads_end_first():
    body = "threading.Thread(target=lambda: (time.sleep(0.5), line('user'))).start()"
    assert run(body).out.splitlines() == ["user", *STEPS]


def test_a_users_thread_that_keeps_the_process_from_ending_is_named():
    """Once, after a minute, and nothing else is done about it: it may be an upload."""
    body = """
closing._THREADS_SECONDS = 0.5
def upload():
    time.sleep(2)
    line("user")
def quick():
    time.sleep(0.2)
threading.Thread(target=upload, name="uploader").start()
threading.Thread(target=quick, name="quick").start()
sys.exit(3)
"""
    result = run(body)
    assert result.code == 3
    assert result.out.splitlines() == ["user", *STEPS]
    assert result.err.count("This process ends when the program's own threads have: uploader (") == 1
    assert "in upload" in result.err and "quick" not in result.err


def test_ctrl_c_while_the_users_threads_are_waited_for():
    """The steps are done all the same: a thread of ours inside the store would abort the process."""
    body = """
import signal
threading.Thread(target=lambda: (time.sleep(1.5), line('user'))).start()
threading.Thread(target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
"""
    assert {"first added", "last added"} <= set(run(body).out.splitlines())


def test_a_step_that_fails_or_hangs_does_not_stop_the_others_or_the_process():
    body = """
closing.at_end("bad", lambda: 1 / 0)
"""
    result = run(body)
    assert (result.code, result.out.splitlines()) == (0, STEPS)
    result = run("""
closing.at_end("the long one", lambda: time.sleep(60))
""", DDP_PATCHES_EXIT_TIMEOUT="0.5")  # fmt: skip
    assert (result.code, result.out.splitlines()) == (0, STEPS)
    assert "the long one did not end within 0.5s (setting exit_timeout)" in result.err


LONG = """
import signal
def long():
    with closing.with_a_bound_of_its_own({seconds}) as hurry:
        line("hurry" if hurry.wait(4) else "in peace")
closing.at_end("the long one", long)

def send(number, after):
    action = lambda: (time.sleep(after), os.kill(os.getpid(), number))
    threading.Thread(target=action, daemon=True).start()
"""
CTRL_C = "send(signal.SIGINT, 0.7)"
FLAG = "signal.signal(signal.SIGTERM, lambda *_: line('noted')); send(signal.SIGTERM, 0.7)"
USERS = "threading.Thread(target=lambda: time.sleep(1.5)).start(); send(signal.SIGINT, 0.7)"


@pytest.mark.parametrize(
    ("more", "said"),
    [("", ["in peace"]), (CTRL_C, ["hurry"]), (FLAG, ["noted", "hurry"]), (USERS, ["hurry"])],
    ids=["no signal", "Ctrl-C", "a handler that notes it", "Ctrl-C during the user's threads"],
)
def test_a_step_may_have_a_bound_of_its_own(more, said):
    """It is told of signals, and what comes after it is still done."""
    result = run(LONG.format(seconds=10) + more, DDP_PATCHES_EXIT_TIMEOUT="0.5")
    assert result.out.splitlines()[: len(said) + 2] == [*said, *STEPS[:2]]
    assert "did not end" not in result.err


def test_a_step_that_exceeds_its_own_bound_is_left_behind():
    result = run(LONG.format(seconds=0.5), DDP_PATCHES_EXIT_TIMEOUT="0.5")
    assert result.out.splitlines() == STEPS and "the long one did not end" in result.err


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_while_a_step_hangs_leaves_no_step_undone(presses):
    """The program had come to a good end, and its exit code says so."""
    body = """
import signal
closing.at_end("the long one", lambda: time.sleep(60))
def press():
    for _ in range(%d):
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press, daemon=True).start()
"""
    result = run(body % presses, DDP_PATCHES_EXIT_TIMEOUT="1")
    assert (result.code, result.out.splitlines()) == (0, STEPS)
    assert "the long one did not end within 1s" in result.err


def test_a_program_without_a_free_file_descriptor():
    body = """
import ctypes, resource
try:
    ctypes.CDLL("libgcc_s.so.1")  # which the first end of a thread loads; torch brings it along
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
threading.Thread(target=lambda: (time.sleep(0.3), line("user"))).start()
"""
    result = run(body)
    assert (result.code, result.out.splitlines()) == (0, ["user", *STEPS])


def test_a_look_is_taken_on_the_main_thread_when_its_program_has_ended():
    body = """
def look():
    line("main" if threading.current_thread() is threading.main_thread() else "another")
closing.at_end("x", lambda: line("step"), look)
closing.at_end("y", lambda: None, lambda: line("never"))()
threading.Thread(target=lambda: (time.sleep(0.3), line("user"))).start()
"""
    assert run(body).out.splitlines() == ["main", "user", "step", *STEPS]


def test_a_step_may_take_another_one_back():
    body = """
take_back = closing.at_end("taken back", lambda: line("never"))
closing.at_end("taker", take_back)
closing.at_end("d", lambda: line("once"))
"""
    assert run(body).out.splitlines() == ["once", *STEPS]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_children_do_their_own_steps_and_not_the_parents():
    body = """
import multiprocessing
def work(own):
    if own:
        closing.at_end("own", lambda: line("the child's"))
context = multiprocessing.get_context("fork")
for own in (False, True):
    child = context.Process(target=work, args=(own,))
    child.start(); child.join()
    line("child %d" % child.exitcode)
pid = os.fork()
if pid == 0:
    sys.exit(6)
line("forked %d" % (os.waitpid(pid, 0)[1] >> 8))
"""
    result = run(body)
    # The child of os.fork runs the parent's atexit handlers, as it does without us.
    assert result.out.splitlines() == ["child 0", "the child's", "child 0", "atexit", "forked 6", *STEPS]
