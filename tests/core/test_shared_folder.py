"""What is said of a folder that the ranks do not share."""

from __future__ import annotations

from ddp_patches.runtime.shared_folder import Report, explain


def test_a_folder_in_which_rank_0_finds_everything_is_shared():
    assert explain({0: Report("a", "/x", ""), 1: Report("b", "/x", "")}, [], "Do something.") is None


def test_the_ranks_whose_files_are_missing_are_named_with_host_and_folder():
    reports = {
        0: Report("a", "/x", ""),
        1: Report("a", "/x", ""),
        2: Report("b", "/x", ""),
        3: Report("b", "/y", "PermissionError: no"),
    }
    assert explain(reports, [2, 3], "Do something.") == (
        "rank 0 on a does not find the parts of 2 of 4 ranks in /x. They have\n"
        "  rank 2 on b: /x, has written to it\n"
        "  rank 3 on b: /y, cannot write there: PermissionError: no\n"
        "Do something."
    )


def test_a_large_job_gets_a_short_text():
    reports = {rank: Report("host%d" % (rank // 8), "/x", "") for rank in range(512)}
    text = explain(reports, list(range(8, 512)), "Do something.")
    assert "504 of 512 ranks" in text
    assert "and 496 more ranks" in text
    assert len(text.splitlines()) == 11


def test_rank_0s_own_failure_is_said():
    text = explain({0: Report("a", "/x", "OSError: full"), 1: Report("a", "/x", "")}, [1], "")
    assert "in /x (OSError: full)." in text
