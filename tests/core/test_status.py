"""`ddp_patches.status()` in a process, and the overview of a whole job (promise 3: truth, with reasons)."""

from __future__ import annotations

import json

import pytest

from ddp_patches import overview, overview_job, overview_text, tables
from ddp_patches.engine import ledger
from support import made_up

# Prints the rows of the made-up framework's patch, as status() has them.
SHOW = """
        rows = [row for row in ddp_patches.status().patches if row.id == "framework.work"]
        print([(row.state, row.reason) for row in rows])
"""


@pytest.fixture
def made(tmp_path):
    """A folder with a made-up torch, framework, and patches for it."""
    return made_up.write(tmp_path)


def test_states_follow_what_happens_to_the_process(made):
    program = (
        """
        import ddp_patches, framework_patches
        %(show)s
        ddp_patches.enable()
        %(show)s
        import torch
        %(show)s
        import framework.work
        %(show)s
        ddp_patches.disable()
        %(show)s
    """.replace("        ", "")
        % {"show": SHOW.replace("        ", "")}
    )
    lines = [json.loads(line.replace("(", "[").replace(")", "]").replace("'", '"')) for line in
             made_up.lines(made, program)]  # fmt: skip
    off, armed, on, applied, disabled = lines
    assert off == disabled == [["skipped", "ddp_patches is not enabled in this process"]] * 2
    assert armed == [["waiting", "torch is not imported yet"]] * 2
    assert on == [["waiting", "framework is not imported yet"]] * 2
    assert [state for state, _ in applied] == ["applied", "applied"]


def test_the_switch_is_the_reason(made):
    program = (
        """
        import ddp_patches, framework_patches
        ddp_patches.enable()
        import torch"""
        + SHOW
    )
    assert "DDP_PATCHES=0 turns everything off" in made_up.lines(made, program, DDP_PATCHES="0")[0]


def test_status_before_torch_does_not_keep_the_engine_from_starting(made):
    """Whoever looks must not change what is looked at."""
    program = """
        import ddp_patches, framework_patches
        ddp_patches.enable()
        str(ddp_patches.status()), ddp_patches.status().as_dict()
        import framework.work
        print([row.state for row in ddp_patches.status().patches if row.package == "framework"])
    """
    assert made_up.lines(made, program) == ["['applied', 'applied']"]


def test_the_object_has_the_fields_of_the_json(made):
    program = """
        import json, ddp_patches, framework_patches, framework.work
        ddp_patches.enable(timeout="4h")
        status = ddp_patches.status()
        assert status.patches[0].id and status.patches[0].state
        print(json.dumps(status.as_dict()))
    """
    variables = {"RANK": "3", "LOCAL_RANK": "1", "DDP_PATCHES_EXIT_TIMEOUT": "5s"}
    found = json.loads(made_up.lines(made, program, **variables)[0])
    assert {"patches", "settings", "limits", "ranks"} <= set(found)
    for row in found["patches"]:
        assert {"id", "state", "verdict", "reason", "package", "version", "target"} <= set(row)
        assert row["reason"]
    assert found["settings"]["timeout"] == {"value": 14400.0, "source": "keyword", "text": "4h"}
    assert found["settings"]["exit_timeout"] == {"value": 5.0, "source": "environment", "text": "5s"}
    assert found["settings"]["strict"] == {"value": False, "source": "default", "text": "off"}
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["local_rank"]) == (3, 1)
    assert rank["host"]
    assert rank["pid"]
    assert rank["patches"] == found["patches"]


def test_a_target_whose_module_was_not_imported_names_the_module(made):
    """`framework is not imported yet` would be false once it is."""
    program = """
        import ddp_patches, framework_patches
        late = ddp_patches.patch("framework.late", package="framework", summary="")
        targets = [("framework.user|framework.latest:f", ">=1"), ("framework.user:g", "<1")]
        targets += [("framework.gone:h", "")]
        for target, versions in targets:
            late.replaces(target, versions=versions)(lambda original: original)
        ddp_patches.enable()
        import torch, framework
        for row in ddp_patches.status().patches:
            if row.id == "framework.late":
                print(row.state, row.verdict or "-", row.reason)
    """
    assert made_up.lines(made, program) == [
        "waiting - framework.user or framework.latest is not imported yet",
        "skipped absent there is no variant for framework 1.2.0",
        "waiting absent there is no module framework.gone",
    ]


def test_holders_out_of_reach_are_named(made):
    """Promise 4: closures, partials and other people's class bodies are out of reach; status says so."""
    program = """
        import functools, ddp_patches, framework_patches
        from framework.work import work
        kept = functools.partial(work, 3)
        class Theirs:
            work = work
        ddp_patches.enable()
        row = ddp_patches.status().patches
        row = [row for row in row if row.target == "framework.work:work"][0]
        print(row.holders, row.unreachable)
        print("still upstream's in a functools.partial" in " ".join(str(ddp_patches.status()).split()))
    """
    found = made_up.lines(made, program)
    assert found[0].endswith("['a functools.partial', 'the class __main__.Theirs']")
    assert int(found[0].split()[0]) >= 2
    assert found[1] == "True"


def test_a_failure_shows_its_traceback(made):
    program = """
        import ddp_patches
        patch = ddp_patches.patch("framework.bad", package="framework", summary="")
        @patch.replaces("framework.work:work", parameters=("amount",))
        def work(original):
            raise RuntimeError("nobody expects this")
        ddp_patches.enable()
        import framework.work
        row = [row for row in ddp_patches.status().patches if row.id == "framework.bad"][0]
        print(row.state, "nobody expects this" in row.reason, "RuntimeError: nobody" in row.traceback)
        print(str(ddp_patches.status()))
    """
    finished = made_up.run(made, program)
    assert finished.code == 0
    assert finished.out.startswith("failed True True\n")
    assert "Traceback of framework.bad" in finished.out


def test_with_strict_a_wrong_setting_is_shown_rather_than_raised(made):
    program = "import ddp_patches; print([w['message'] for w in ddp_patches.status().warnings])"
    found = made_up.lines(made, program, DDP_PATCHES_STRICT="1", DDP_PATCHES_TIMEOUT="soon")
    assert "strict is on" in found[0]
    assert "'soon'" in found[0]


def record(**changed):
    """The ledger of a job of two ranks, as the run folder gives it."""
    row = {"id": "a.b", "state": "applied", "verdict": "tested", "reason": "r", "package": "torch",
           "version": "2.0", "target": "torch.x:f"}  # fmt: skip
    ranks = [
        {"rank": number, "local_rank": number, "host": "node%d" % number, "pid": 100 + number,
         "packages": {"torch": "2.0"}, "patches": [dict(row)]}
        for number in (1, 0)
    ]  # fmt: skip
    found = {
        "run": "20260101-000000-abcdef",
        "started": "2026-01-01T00:00:00+0000",
        "world_size": 2,
        "launcher": "torchrun",
        "settings": {"timeout": {"value": 7200.0, "source": "environment"}},
        "limits": {
            "groups": [{"group": "default", "timeout": 7200.0, "set_by": "ddp_patches"}],
            "changes": [],
        },
        "ranks": ranks,
    }
    found.update(changed)
    return found


def test_a_job_has_all_ranks_in_order():
    found = overview_job.of_run(record())
    assert [rank["rank"] for rank in found.ranks] == [0, 1]
    assert found.settings["timeout"]["text"] == "2h"
    assert [row.state for row in found.patches] == ["applied"]
    text = " ".join(str(found).split())
    assert "on for 2 of 2 ranks on 2 hosts" in text
    assert "2h, set by ddp_patches" in text
    assert "DDP_PATCHES_TIMEOUT" in text


def test_of_ranks_that_differ_the_worst_is_shown_with_its_rank():
    """One rank without a patch is what hangs a job: a summary must not hide it behind the others."""
    changed = record()
    changed["ranks"][0]["patches"][0].update(state="failed", reason="broken")
    row = overview_job.of_run(changed).patches[0]
    assert row.state == ledger.FAILED
    assert row.reason == "on rank 1 of 2: broken"
    assert "on rank 1 of 2: broken" in " ".join(str(overview_job.of_run(changed)).split())


def test_a_rank_that_has_not_got_so_far_is_told_apart():
    """It knows its target only as it was declared, with all the modules that releases keep it in."""
    changed = record()
    changed["ranks"][0]["patches"][0].update(state="waiting", target="torch.x|torch.y:f", reason="later")
    (row,) = overview_job.of_run(changed).patches
    assert (row.state, row.reason) == ("waiting", "on rank 1 of 2: later")


def test_ranks_that_left_no_record_are_missed():
    changed = record(world_size=4)
    text = " ".join(str(overview_job.of_run(changed)).split())
    assert "on, but only for 2 of 4 ranks" in text
    assert "no record of ranks 2-3" in text


def test_different_versions_are_told_apart():
    changed = record()
    changed["ranks"][0]["packages"] = {"torch": "2.1"}
    text = str(overview_job.of_run(changed))
    assert "rank 0 with torch 2.0" in text
    assert "rank 1 with torch 2.1" in text


def test_of_many_ranks_the_text_shows_those_that_differ():
    changed = record(world_size=200)
    template = changed["ranks"][0]
    changed["ranks"] = [json.loads(json.dumps({**template, "rank": number})) for number in range(200)]
    changed["ranks"][77]["patches"][0]["state"] = "failed"
    text = str(overview_job.of_run(changed))
    assert "198 more ranks" in text
    assert "\n  77 " in text
    assert len(text.splitlines()) < 60


def test_a_peers_text_cannot_steer_the_terminal():
    """Promise 10: nothing that came from a peer is printed with its control characters."""
    changed = record()
    changed["ranks"][0].update(host="evil\x1b[2J\nhost", device="\x07")
    changed["ranks"][0]["patches"][0].update(
        state="failed", reason="a\x1b]0;b", traceback="Trace\n  \x1b[31mx"
    )
    changed["limits"]["groups"][0]["set_by"] = "c\x1b[5m"
    text = str(overview_job.of_run(changed))
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize(
    "damage",
    [
        {"ranks": None},
        {"ranks": ["x", {"rank": 0, "patches": [{}]}]},
        {"settings": {"timeout": {"value": "x"}, "skip": 3}},
        {"limits": None},
    ],
)
def test_a_damaged_ledger_is_shown_as_far_as_it_goes(damage):
    assert "Run" in str(overview_job.of_run(record(**damage)))
    assert "Run" in str(overview_job.of_run({"run": "x"}))


def test_text_fits_and_is_plain():
    changed = record()
    changed["ranks"][0]["patches"][0].update(state="failed", reason="long " * 60, target="m:" + "name" * 9)
    for line in str(overview_job.of_run(changed)).splitlines():
        assert len(line) <= tables.WIDTH
        assert "\x1b" not in line


def test_colours_are_only_for_terminals():
    found = overview_job.of_run(record())
    assert "\x1b[32mapplied" in overview_text.text(found, colours=True)
    assert "\x1b" not in overview_text.text(found, colours=False)


def test_targets_of_other_releases_do_not_count():
    def row(target, state, reason):
        return overview.PatchRow("a.b", state, "", reason, "torch", "2.0", target)

    other = row("torch:old", ledger.SKIPPED, "there is no variant for torch 2.0")
    mine = row("torch:new", ledger.APPLIED, "")
    gone = row("torch:gone", ledger.SKIPPED, "torch has no gone")
    assert overview.by_patch([other, mine]) == {"a.b": "applied"}
    assert overview.by_patch([other]) == {"a.b": "skipped"}
    later = row("torch:later", ledger.WAITING, "")
    assert overview.by_patch([later, mine]) == overview.by_patch([mine, later]) == {"a.b": "applied"}
    assert overview.by_patch([later]) == {"a.b": "waiting"}
    assert overview.by_patch([other, mine, gone]) == {"a.b": "skipped"}


def test_table_wraps_its_last_column_and_moves_it_below_where_there_is_no_room():
    beside = tables.table([["a", "word " * 30]])
    assert all(line.startswith(("  a", "     word")) for line in beside.splitlines())
    below = tables.table([["a" * 80, "word " * 30]])
    assert below.splitlines()[1].startswith("      word")
    assert all(len(line) <= tables.WIDTH for text in (beside, below) for line in text.splitlines())
    assert tables.table([]) == ""
