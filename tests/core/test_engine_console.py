"""Lines for people (promises 10 and 12): readable among progress bars, and never a reason to fail."""

from __future__ import annotations

import re

import pytest

from support import made_up


def said(folder, program, **variables):
    finished = made_up.run(folder, "from ddp_patches import console\n" + program, **variables)
    assert finished.code == 0, finished.err
    return finished.err


def test_a_line_says_when_where_and_who(tmp_path):
    line = said(tmp_path, "console.say('all is well')")
    assert re.fullmatch(r"ddp_patches \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[\S+, pid \d+\] all is well\n", line)


def test_a_rank_begins_a_new_line_because_a_progress_bar_may_stand_in_the_old_one(tmp_path):
    program = "import sys; sys.stderr.write('epoch 1: 37%'); console.say('all is well')"
    assert "37%\nddp_patches " in said(tmp_path, program, RANK="3")
    assert "[rank 3, " in said(tmp_path, program, RANK="3")


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    line = said(
        tmp_path, r"console.say('\x1b[2Jgone \x07\x9b\r\u202e\ud800 but\n\tkept')", PYTHONIOENCODING="utf-8"
    )
    assert line.endswith(" \ufffd[2Jgone \ufffd\ufffd\ufffd\ufffd\ufffd but\n\tkept\n")


@pytest.mark.parametrize("stderr", ["None", "open('/dev/full', 'w')", "object()"])
def test_a_broken_standard_error_is_no_reason_to_fail(tmp_path, stderr):
    said(
        tmp_path,
        "import sys; sys.stderr = %s; console.warn('lost'); console.say('%%s'); sys.stderr = None" % stderr,
    )


def test_the_level_is_a_setting(tmp_path):
    program = "console.say('ordinary'); console.warn('important')"
    assert said(tmp_path, program).count("\n") == 2
    assert "ordinary" not in said(tmp_path, program, DDP_PATCHES_LOG_LEVEL="warning")


def test_a_users_own_handler_takes_the_place_of_ours(tmp_path):
    program = """if True:
        import logging
        logging.getLogger("ddp_patches").addHandler(logging.FileHandler("lines.log"))
        console.warn("to the file")
    """
    assert said(tmp_path, program) == ""
    assert (tmp_path / "lines.log").read_text() == "to the file\n"


def test_a_configured_root_logger_prints_no_line_twice(tmp_path):
    program = "import logging; logging.basicConfig(); console.warn('once')"
    assert said(tmp_path, program).count("once") == 1


def test_once_is_once_for_the_whole_job(tmp_path):
    program = """if True:
        import subprocess, sys
        for _ in range(2):
            for text in ("one", "other"):
                console.warn_once(text)
        child = "from ddp_patches import console; console.warn_once('one'); console.warn_once('third')"
        subprocess.run([sys.executable, "-c", child], check=True)
    """
    lines = said(tmp_path, program).splitlines()
    assert [line.split()[-1] for line in lines] == ["one", "other", "third"]
    assert said(tmp_path, program, RANK="1") == ""
