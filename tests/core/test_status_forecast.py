"""What becomes of each patch in a run with what is installed: state, verdict and reason before the run."""

from __future__ import annotations

import pytest

from ddp_patches.engine import apply
from ddp_patches.engine.patch import Patch, Target, Variant
from ddp_patches.inspection import forecast, source
from ddp_patches.inspection.installed import Package
from ddp_patches.settings import Settings


def patch_of(*variants, **changed):
    """A patch of the package `frame` with variants given as (target, versions)."""
    entry = Patch("frame.work", "frame", "", "", "", "", "", **changed)
    for target, versions in variants:
        entry.variants.append(Variant(Target.parse(target), versions, ("amount",), lambda original: original))
    return entry


def stand_in(module, attribute):
    """`frame.work` and `frame.other` have what fits, `frame.changed` what does not, nothing else exists."""
    if module in ("frame.work", "frame.other"):
        return lambda amount: amount
    if module == "frame.changed":
        return lambda rank: rank
    if module == "frame.compiled":
        raise source.Untold("frame.compiled is compiled")
    raise apply.Absent("there is no module %s" % module)


def row(entry, version="1.2", target=None, **settings):
    packages = {"frame": Package("frame", version, (), "/x")} if version is not None else {}
    environ = settings.pop("environ", {})
    rows = forecast.rows([entry], packages, Settings(**settings), environ, stand_in)
    found = [r for r in rows if target is None or r["target"] == target]
    assert len(found) == 1, rows
    return found[0]


def test_a_fitting_patch_would_be_applied():
    found = row(patch_of(("frame.work:work", "")))
    assert (found["state"], found["verdict"]) == ("waiting", "compatible")
    assert (found["package"], found["version"]) == ("frame", "1.2")
    assert found["target"] == "frame.work:work"


def test_a_version_that_our_tests_ran_is_said_to_be_tested():
    assert row(patch_of(("frame.work:work", ""), tested=("1.2",)))["verdict"] == "tested"


def test_the_module_that_this_release_has_is_taken():
    assert row(patch_of(("frame.gone|frame.other:work", "")))["target"] == "frame.other:work"


@pytest.mark.parametrize(
    "target, verdict, reason",
    [
        ("frame.changed:work", "changed", "has no amount"),
        ("frame.gone:work", "absent", "there is no module frame.gone"),
    ],
)
def test_what_does_not_fit_is_skipped_with_the_reason(target, verdict, reason):
    found = row(patch_of((target, "")))
    assert (found["state"], found["verdict"]) == ("skipped", verdict)
    assert reason in found["reason"]


def test_what_cannot_be_told_is_left_open():
    found = row(patch_of(("frame.compiled:work", "")))
    assert (found["state"], found["verdict"]) == ("waiting", "")
    assert "not known before it is imported" in found["reason"]


def test_a_framework_that_is_not_installed():
    found = row(patch_of(("frame.work:work", "")), version=None)
    assert (found["state"], found["verdict"], found["version"]) == ("skipped", "absent", "")
    assert found["reason"] == "frame is not installed"


def test_fixed_upstream():
    found = row(patch_of(("frame.work:work", ""), fixed_in=">=1.2"))
    assert (found["state"], found["verdict"]) == ("skipped", "fixed upstream")


def test_the_variant_of_the_installed_version_decides():
    entry = patch_of(("frame.work:work", "<1.0"), ("frame.other:work", ">=1.0"))
    assert row(entry, target="frame.other:work")["state"] == "waiting"
    assert row(entry, target="frame.work:work")["reason"] == "there is no variant for frame 1.2"


def test_an_unreadable_version_counts_as_the_newest():
    entry = patch_of(("frame.work:work", "<1.0"), ("frame.other:work", ">=1.0"))
    assert row(entry, version="", target="frame.other:work")["state"] == "waiting"


def test_settings_and_the_switch_leave_out_what_would_fit():
    entry = patch_of(("frame.work:work", ""))
    skipped = row(entry, skip=("frame.*",))
    assert (skipped["state"], skipped["reason"]) == ("skipped", "the setting skip names it")
    off = row(entry, environ={"DDP_PATCHES": "off"})
    assert (off["state"], off["reason"]) == ("skipped", "DDP_PATCHES=off turns everything off")
    assert off["verdict"] == "compatible"
