"""`nox -s drift` names what a new release has changed, without the index: on made-up packages in a folder."""

from __future__ import annotations

import sys
import textwrap

import pytest

from ddp_patches.engine import fingerprint, known
from ddp_patches.engine.patch import Patch, Target, Variant
from fingerprints import drift, frameworks, package_index, packing
from support import made_up

WORK = "frame.work|frame.older_work:work"
METHOD = "frame.work:Worker.work"
UPSTREAM = {"frame/work.py": "def work(amount): ...\nclass Worker:\n    def work(self, amount): ...\n"}


@pytest.fixture
def patches(monkeypatch):
    """A patch of the package `frame`, of which 1.0 and 1.1 are known to be as above."""
    entry = Patch("frame.patch", "frame", "", "", "", "", "", tested=("1.0",))
    for target in (WORK, METHOD):
        entry.variants.append(Variant(Target.parse(target), "", ("amount",), lambda original: original))
    old = Variant(Target.parse("frame.old:work"), "<1.0", ("amount",), lambda original: original)
    entry.variants.append(old)
    release = {
        target: fingerprint.of_source(UPSTREAM["frame/work.py"], target.partition(":")[2])
        for target in (WORK, METHOD)
    }
    content = {"frame": packing.packed([("1.0", release), ("1.1", release)])}
    monkeypatch.setattr(known, "read", lambda: content)
    known.of_target.cache_clear()
    yield [entry, Patch("other.patch", "other", "", "", "", "", "")]
    known.of_target.cache_clear()


def compared(folder, patches, version="1.2", **files):
    written = {"frame/__init__.py": "__version__ = %r\n" % version, **UPSTREAM}
    written.update({"frame/%s.py" % name: text for name, text in files.items()})
    made_up.write_files(folder, {name: text for name, text in written.items() if text})
    return drift.compare(patches, "frame", folder, "1.2")


def test_a_release_that_changes_nothing_is_as_known(tmp_path, patches, capsys):
    found = compared(tmp_path, patches)
    assert found == []
    assert not drift.report("frame 1.2", found)
    assert capsys.readouterr().out == "frame 1.2: as known\n"
    assert "frame" not in sys.modules and str(tmp_path) not in sys.path


def test_a_signature_that_does_not_fit_is_named_with_the_patch(tmp_path, patches, capsys):
    work = UPSTREAM["frame/work.py"].replace("def work(amount)", "def work(amount, unit)")
    (found,) = compared(tmp_path, patches, work=work)
    assert drift.report("frame 1.2", [found])
    said = capsys.readouterr().out
    for part in (
        "changed: frame.work:work",
        "frame.patch",
        "was (amount), is (amount, unit)",
        "requires unit",
    ):
        assert part in said


def test_a_target_that_has_vanished_is_a_change(tmp_path, patches):
    found = compared(tmp_path, patches, work="def labour(amount): ...\n")
    assert [(each.kind, each.before, each.now) for each in found] == [
        ("changed", "(amount)", ""),
        ("changed", "(self, amount)", ""),
    ]
    found = compared(tmp_path / "moved", patches, work="", other=UPSTREAM["frame/work.py"])
    assert [each.kind for each in found] == ["changed", "changed"]


def test_a_target_in_another_of_its_homes_is_none(tmp_path, patches):
    found = compared(tmp_path, patches, older_work="def work(amount): ...\n", work=textwrap.dedent("""\
        class Worker:
            def work(self, amount): ...
    """))  # fmt: skip
    assert found == []


def test_other_code_with_the_same_signature_is_listed_and_no_failure(tmp_path, patches):
    work = UPSTREAM["frame/work.py"].replace("def work(self, amount): ...", "def work(self, amount): go()")
    (found,) = compared(tmp_path, patches, work=work)
    assert (found.kind, found.target) == ("different code", METHOD)
    assert "since 1.1: calls go" in found.reason
    assert not drift.report("frame 1.2", [found])


@pytest.mark.parametrize("version", ["", "main", "1.2.dev1", "9.0a0+git3f2a1c"])
def test_every_version_can_be_compared(tmp_path, patches, version):
    """onedl-mmdetection's source says no version; what an odd one says is compared with the newest known."""
    assert compared(tmp_path, patches, version) == []
    work = UPSTREAM["frame/work.py"].replace("def work(amount)", "def labour(amount)")
    (found,) = compared(tmp_path / "vanished", patches, version, work=work)
    assert (found.kind, found.target) == ("changed", WORK)


def test_what_was_never_there_has_not_vanished(tmp_path, patches):
    """mmdet 3.x has no CustomDataset; that is known of all its releases, and of a newer one nothing new."""
    patches[0].variants.append(Variant(Target.parse("frame.gone:work"), "", (), lambda original: original))
    assert compared(tmp_path, patches) == []


def index(monkeypatch, releases, broken=()):
    """The package index has these releases of `frame`, all with the same files."""

    def files(distribution, release, names):
        if release in broken:
            raise package_index.NotFound("%s %s: broken" % (distribution, release))
        assert "frame/work.py" in names
        return {
            "frame/__init__.py": b"__version__ = '%s'\n" % release.encode(),
            "frame/work.py": b"def work(): ...\n",
        }

    monkeypatch.setattr(frameworks, "DISTRIBUTIONS", {"frame": [("frame-headless", ">=1.0")]})
    monkeypatch.setattr(frameworks, "file_names", lambda package: ["frame/work.py"])
    monkeypatch.setattr(package_index, "releases", lambda distribution: releases)
    monkeypatch.setattr(package_index, "files", files)


@pytest.mark.parametrize(
    "releases, broken, taken",
    [
        (["0.1", "1.1", "1.2"], [], "1.2"),
        (["1.1", "1.2", "1.3rc1"], [], "1.2"),
        (["1.1", "1.2", "1.10"], ["1.10"], "1.2"),
        (["1.1", "1.2", "1.10"], ["1.10", "1.2"], None),
        (["0.1"], [], None),
    ],
)
def test_the_newest_release_that_can_be_had(monkeypatch, tmp_path, releases, broken, taken):
    index(monkeypatch, releases, broken)
    if taken is None:
        with pytest.raises(package_index.NotFound):
            drift.newest("frame", "frame-headless", ">=1.0", tmp_path)
    else:
        assert drift.newest("frame", "frame-headless", ">=1.0", tmp_path) == taken


@pytest.mark.parametrize(
    "options, broken, code", [([], [], 1), ([], ["1.2"], 1), (["--tolerate-missing"], ["1.2"], 0)]
)
def test_the_session_fails_for_changes_and_for_what_it_could_not_look_at(
    monkeypatch, capsys, patches, options, broken, code
):
    index(monkeypatch, ["1.2"], broken)
    monkeypatch.setattr(drift.catalogue, "load", lambda: patches)
    monkeypatch.setattr(sys, "argv", ["drift", *options])
    assert drift.main() == code
    said = capsys.readouterr().out
    assert ("frame-headless: not compared: " in said) == bool(broken)
    assert ("changed: " in said) == (not broken)
