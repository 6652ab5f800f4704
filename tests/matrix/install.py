"""Install what a cell of the matrix needs: an environment, and releases in folders of their own."""

from __future__ import annotations

import pathlib
import shutil

import nox

from support import releases

TEST_TOOLS = ["pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist"]


def environment(session: nox.Session, name: str) -> None:
    """The package, the test tools and what environment `name` of cells.json lists."""
    entry = releases.ENVIRONMENTS[name]
    session.install(".", *TEST_TOOLS, *entry["requirements"])
    if "without_dependencies" in entry:
        session.install("--no-deps", *entry["without_dependencies"])


def layer(session: nox.Session, name: str) -> None:
    """Install release `name` into its folder below `layers(session)`, if it is not there already."""
    folder = layers(session) / name
    if folder.exists():
        return
    release = releases.RELEASES[name]
    # Renamed when complete, so that an interrupted run is not taken for a finished one.
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    # mmcv's and mmdet3d's builds want the torch and the setuptools that are here.
    options = ["--no-deps", "--no-build-isolation", "--target", str(partial)]
    session.install(*options, *release["requirements"])
    if "unpacked" in release:
        _unpack(session, release["unpacked"], partial)
    partial.rename(folder)


def layers(session: nox.Session) -> pathlib.Path:
    """The folder of all releases that were installed for this session's Python, shared by all sessions."""
    return (pathlib.Path(session.cache_dir) / "layers" / str(session.python)).resolve()


def _unpack(session: nox.Session, requirement: str, layer: pathlib.Path) -> None:
    """Put the packages of a source distribution and its metadata into a layer, without building anything."""
    folder = pathlib.Path(session.create_tmp())
    shutil.rmtree(folder / "sdist", ignore_errors=True)
    session.install("pip")  # uv does not download
    options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder / "sdist")]
    session.run("python", "-m", "pip", "--quiet", "download", *options, requirement)
    (archive,) = (folder / "sdist").iterdir()
    shutil.unpack_archive(archive, folder / "sdist")
    (source,) = filter(pathlib.Path.is_dir, (folder / "sdist").iterdir())
    metadata = layer / (source.name + ".dist-info")
    metadata.mkdir()
    shutil.move(str(source / "PKG-INFO"), str(metadata / "METADATA"))
    packages = [path.parent for path in source.glob("*/__init__.py")]
    (metadata / "top_level.txt").write_text("".join(path.name + "\n" for path in packages))
    for package in packages:
        shutil.move(str(package), str(layer / package.name))
