"""Ranks in interactive sessions, as in a notebook or at a prompt: an error ends a cell and not the rank."""

from __future__ import annotations

import sys
import textwrap

import pytest

pytest.importorskip("torch")

from support import environment, ranks

STANDIN = environment.TESTS / "standins" / "rank_zero_first"

CELLS = """
    import ddp_patches.auto
    import rank_program as job, time
    job.start(60)
    job.say(total=job.total())
    if job.RANK == 0: raise ValueError("in a cell")

    time.sleep(6 if job.RANK == 0 else 0)
    job.say(again=job.total())
    """


def test_an_error_in_a_cell_is_no_failure_of_the_rank(jobs):
    """The others go on to wait for it, and it comes."""
    folder, port = jobs.folder("job"), ranks.free_port()
    cells = folder / "cells.txt"
    cells.write_text(textwrap.dedent(CELLS))
    running = [
        jobs.processes("job").start(
            ["sh", "-c", 'exec "$0" -i - <"$1"', sys.executable, cells],
            {**environment.clean(folder, STANDIN), **ranks.variables(rank, 2, port)},
            name="rank%d" % rank,
        )
        for rank in (0, 1)
    ]
    results = [each.wait(100).check() for each in running]
    assert "ValueError: in a cell" in results[0].stderr
    for result in results:
        assert [answer.get("again") for answer in result.answers] == [None, 3.0], result
        assert "failed first" not in result.stderr
