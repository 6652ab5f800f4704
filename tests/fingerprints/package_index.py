"""Releases of a distribution, and single files of one, from the package index as pip is configured.

Nothing is installed, and nothing of upstream's is run.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import Iterable

from packaging.version import InvalidVersion, Version

LIMIT_S = 300  # of one call of pip
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]

_WHEEL_OR_SDIST = [["--no-build-isolation", "--use-pep517", "--ignore-requires-python"]]
# The Python files are the same in all archives of a release: macOS' wheels of torch are a tenth of the
# others' size, and not every release has one for each Python.
_TORCH_WHEELS = [
    ["--only-binary", ":all:", "--python-version", python]
    + [option for number in (11, 12, 13, 14) for option in ("--platform", "macosx_%d_0_arm64" % number)]
    for python in ("3.11", "3.9", "3.13")
]

# Of a source distribution pip wants the metadata, and would run its setup.py for them. This build backend
# takes setuptools' place and copies what the distribution says of itself.
_BACKEND = """
import os, re, shutil

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    with open("PKG-INFO", encoding="utf-8", errors="replace") as file:
        said = dict(re.findall("^(Name|Version): *(.*?) *$", file.read(), re.M)[:2])
    name = "%s-%s.dist-info" % (said["Name"].replace("-", "_"), said["Version"])
    os.mkdir(os.path.join(metadata_directory, name))
    shutil.copy("PKG-INFO", os.path.join(metadata_directory, name, "METADATA"))
    return name

class __legacy__:
    get_requires_for_build_wheel = staticmethod(get_requires_for_build_wheel)
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
"""


class NotFound(LookupError):
    """The index has no such release, or none that can be read here."""


def releases(distribution: str) -> list[str]:
    """All releases, oldest first, with pre-releases and without yanked ones. Raises NotFound."""
    found: set[str] = set()
    said = ""
    for options in _TORCH_WHEELS if distribution == "torch" else [["--ignore-requires-python"]]:
        command = [*_PIP, "index", "versions", "--pre", *options, distribution]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = _last_line(finished.stderr)
        listed = re.search(r"^Available versions: (.*)$", finished.stdout, re.MULTILINE)
        if listed is not None:
            found.update(text.strip().partition("+")[0] for text in listed.group(1).split(","))
    if not found:
        raise NotFound("%s: %s" % (distribution, said))
    return sorted(filter(_is_version, found), key=Version)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def files(distribution: str, release: str, names: Iterable[str]) -> dict[str, bytes]:
    """Those of the files ``names`` (``package/module.py``) that a release has. Raises NotFound."""
    with tempfile.TemporaryDirectory() as folder:
        return read_archive(_download(distribution, release, pathlib.Path(folder)), names)


def _download(distribution: str, release: str, folder: pathlib.Path) -> pathlib.Path:
    backend = folder / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BACKEND)
    archives = folder / "archives"
    said = ""
    for options in _TORCH_WHEELS if distribution == "torch" else _WHEEL_OR_SDIST:
        command = [*_PIP, "--quiet", "download", "--no-deps", "--no-cache-dir", "--dest", str(archives)]
        environment = {**os.environ, "PYTHONPATH": str(backend.parent)}
        finished = subprocess.run(
            [*command, *options, "%s==%s" % (distribution, release)],
            capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment,
        )  # fmt: skip
        found = list(archives.glob("*")) if archives.is_dir() else []
        if finished.returncode == 0 and found:
            return found[0]
        said = _last_line(finished.stderr)
    raise NotFound("%s %s: %s" % (distribution, release, said))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "pip said nothing")


def read_archive(path: pathlib.Path, names: Iterable[str]) -> dict[str, bytes]:
    """Those of ``names`` that are in a wheel or a source distribution, without unpacking it."""
    wanted = set(names)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {_below_root(name, wanted): name for name in archive.namelist()}
            return {name: archive.read(member) for name, member in members.items() if name}
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = _below_root(member.name, wanted)
            stream = archive.extractfile(member) if name else None
            if stream is not None:
                found[name] = stream.read()
    return found


def _below_root(member: str, wanted: set[str]) -> str:
    """The one of ``wanted`` that a member is: itself, or below a source distribution's own folder."""
    for name in (member, member.partition("/")[2], member.partition("/src/")[2]):
        if name in wanted:
            return name
    return ""
