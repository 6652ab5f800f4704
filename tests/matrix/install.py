"""Install what a cell of the matrix needs: an environment, and releases in folders of their own."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import tempfile
import types
from typing import Any, Mapping

import nox

from matrix import results
from support import releases

TEST_TOOLS = ["pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist"]

_REASON_LENGTH = 300  # characters, of a message that can be pages


class NotInstalled(nox.command.CommandFailed):
    """Something could not be installed; the text says what the installer said."""


def environment(session: nox.Session, name: str) -> None:
    """The package, the test tools and what environment `name` of cells.json lists. Raises NotInstalled."""
    entry = releases.ENVIRONMENTS[name]
    _install(session, ".", *TEST_TOOLS, *entry["requirements"])
    if "without_dependencies" in entry:
        _install(session, "--no-deps", *entry["without_dependencies"])


def layer(
    session: nox.Session,
    name: str,
    folder: pathlib.Path,
    instead: Mapping[str, Any] = types.MappingProxyType({}),
    anew: bool = False,
) -> None:
    """Have release `name`, or what a cell has in its place, in a folder of its own below `folder`.

    What is there already and made of the same requirements is used again, unless it is to be made `anew`.
    Raises NotInstalled.
    """
    release = {**releases.RELEASES[name], **instead}
    made_of = {key: release.get(key) for key in ("requirements", "unpacked")}
    made, stamp = folder / name, json.dumps(made_of, sort_keys=True)
    if not anew and (made / ".made_of").is_file() and (made / ".made_of").read_text() == stamp:
        return
    shutil.rmtree(made, ignore_errors=True)
    # Renamed when complete, so that an interrupted run is not taken for a finished one.
    partial = made.with_name(made.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    # mmcv's and mmdet3d's builds want the torch and the setuptools that are here.
    options = ["--no-deps", "--no-build-isolation", "--target", str(partial)]
    _install(session, *options, *(made_of["requirements"] or []))
    if made_of["unpacked"]:
        _unpack(session, str(made_of["unpacked"]), partial)
    (partial / ".made_of").write_text(stamp)
    partial.rename(made)


def layers(session: nox.Session, kind: str = "") -> pathlib.Path:
    """The folder of all releases that are installed for this session's Python, shared by all sessions."""
    return (pathlib.Path(session.cache_dir) / "layers" / (str(session.python) + kind)).resolve()


def frameworks(layer: pathlib.Path) -> dict[str, str]:
    """The versions of the frameworks in a layer, by the names of their distributions."""
    found = importlib.metadata.distributions(path=[str(layer)])
    versions = {distribution.metadata["Name"]: distribution.version for distribution in found}
    return {name: versions[name] for name in sorted(versions) if results.is_framework(name)}


def _install(session: nox.Session, *arguments: str) -> None:
    """As `session.install`; if it fails, what the installer said is shown and becomes the error's text."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            session.install(*arguments, silent=False, stdout=output, stderr=subprocess.STDOUT)
        except nox.command.CommandFailed as error:
            output.seek(0)
            said = output.read()
            session.warn(said)
            raise NotInstalled(" ".join(said.split())[-_REASON_LENGTH:] or str(error)) from error


def _unpack(session: nox.Session, requirement: str, layer: pathlib.Path) -> None:
    """Put the packages of a source distribution and its metadata into a layer, without building anything."""
    folder = pathlib.Path(session.create_tmp()) / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    _install(session, "pip")  # uv does not download
    options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder)]
    session.run("python", "-m", "pip", "--quiet", "download", *options, requirement)
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, folder)
    (source,) = filter(pathlib.Path.is_dir, folder.iterdir())
    metadata = layer / (source.name + ".dist-info")
    metadata.mkdir()
    shutil.move(str(source / "PKG-INFO"), str(metadata / "METADATA"))
    packages = [path.parent for path in source.glob("*/__init__.py")]
    (metadata / "top_level.txt").write_text("".join(path.name + "\n" for path in packages))
    for package in packages:
        shutil.move(str(package), str(layer / package.name))
