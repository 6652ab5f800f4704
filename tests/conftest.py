"""Fixtures of all tests."""

from __future__ import annotations

import signal

import pytest

from support.processes import Processes

# A script's `&` starts a program that ignores Ctrl-C, nohup one that ignores the end of its terminal, and so
# does whatever that starts: but what has a handler is back at the default there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


@pytest.fixture
def processes(tmp_path):
    """Starts commands; whatever still runs when the test is over is ended."""
    starter = Processes(tmp_path)
    yield starter
    starter.end()


_EXPIRY = """\
This test shows that upstream still has the fault that the patch %s cures, and that the patch cures it.
If upstream has cured it by now, the patch has expired: write the first release without the fault into the
patch (fixed_in=">=VERSION"), and let this test run the last release with it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.failed:
        for mark in item.iter_markers("upstream_fault"):
            report.sections.append(("Expiry", _EXPIRY % mark.args[0]))
    return report


_LEFT_OUT = "tests_left_out"
_COUNTS = pytest.StashKey()


def pytest_deselected(items):
    """Count them. Under xdist this is a worker, and all workers collect the same."""
    config = items[0].config
    counts = getattr(config, "workeroutput", config.stash.setdefault(_COUNTS, {}))
    counts[_LEFT_OUT] = counts.get(_LEFT_OUT, 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[_COUNTS] = getattr(node, "workeroutput", {})


def pytest_terminal_summary(terminalreporter, config):
    """xdist's own summary does not say that there are any."""
    count = config.stash.get(_COUNTS, {}).get(_LEFT_OUT, 0)
    if count:
        chosen = config.getoption("markexpr") or config.getoption("keyword")
        terminalreporter.write_line("%d tests were left out by: %s" % (count, chosen))
