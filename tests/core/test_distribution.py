"""What is installed with the package, and what comes along. Guards: pip never installs torch for us."""

from __future__ import annotations

import pathlib
import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from support import releases

ROOT = pathlib.Path(__file__).parents[2]

# Installing one of these beside a user's own build can replace it, or a torch that it depends on.
FRAMEWORKS = ("torch", "ultralytics", "yolov5", "mmcv", "mmdet", "mmengine", "onedl", "opencv", "nvidia")


@pytest.fixture(scope="module")
def distribution():
    try:
        return metadata.distribution("ddp-patches")
    except metadata.PackageNotFoundError:
        pytest.skip("runs from a source tree: nothing is installed")


def requirements(distribution):
    return [Requirement(text) for text in distribution.requires or []]


def test_hard_dependencies_are_wrapt_and_packaging(distribution):
    hard = {item.name: str(item.specifier) for item in requirements(distribution) if item.marker is None}
    assert hard == {"packaging": ">=20.0", "wrapt": ">=1.14"}


def test_the_minimums_are_the_lowest_versions_that_are_allowed():
    """`nox -s minimums` runs what pyproject.toml promises."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    allowed = re.findall(r'^  "(packaging|wrapt)>=(.+)",$', text, re.MULTILINE)
    assert len(allowed) == 2
    for environment in ("minimums", "torch-1.12"):
        pinned = dict(
            text.split("==") for text in releases.ENVIRONMENTS[environment]["requirements"] if "==" in text
        )
        for name, lowest in allowed:
            assert Version(pinned[name]) == Version(lowest), (environment, name)


def test_no_extra_names_torch_or_a_framework(distribution):
    assert set(distribution.metadata.get_all("Provides-Extra")) == {"ultralytics", "mmengine"}
    names = [item.name for item in requirements(distribution)]
    assert not [name for name in names if name.lower().startswith(FRAMEWORKS)]


def test_installed_files_are_those_of_the_source_tree(distribution):
    """The bootstrap is no package and the data no code: a build tool leaves either out without a word."""
    installed = {str(file) for file in distribution.files if file.parts[0] == "ddp_patches"}
    if not installed:
        pytest.skip("an editable install lists no files")
    sources = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "ddp_patches").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert {file for file in installed if not file.endswith(".pyc")} == sources
    assert "ddp_patches/py.typed" in sources


def test_only_one_name_becomes_importable(distribution):
    tops = {file.parts[0] for file in distribution.files if file.suffix == ".py"}
    assert tops <= {"ddp_patches"}
