"""Import names, versions and distributions as `status` reports them: forks, checkouts, layers, leftovers."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from ddp_patches.inspection import installed
from support import made_up


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, and a function that installs a package into it or another folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name, files, distribution=None, version="1.0", folder=tmp_path, **metadata):
        made_up.write_files(folder, {"%s/%s" % (name, path): text for path, text in files.items()})
        if distribution:
            info = "%s-%s.dist-info" % (distribution.replace("-", "_"), version)
            described = "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (distribution, version)
            made_up.write_files(folder, {info + "/METADATA": described})
            made_up.write_files(folder, {"%s/%s" % (info, key): text for key, text in metadata.items()})
        importlib.invalidate_caches()

    return install


RECORD = "%s/__init__.py,sha256=x,10\n"


def test_version_is_that_of_the_source_and_nothing_is_imported(site):
    """An editable or hand-edited tree has the code of its own __version__, whatever its metadata says."""
    site(
        "frame", {"__init__.py": "__version__ = '2.1'\nraise SystemExit\n"}, "frame", RECORD=RECORD % "frame"
    )
    found = installed.find("frame")
    assert (found.version, found.distributions) == ("2.1", ("frame 1.0",))
    assert "frame" not in sys.modules


@pytest.mark.parametrize(
    "files",
    [
        {"__init__.py": "from .version import __version__\n", "version.py": "__version__ = '2.1'\n"},
        {"__init__.py": "", "_version.py": "__version__ = version = '2.1'\n"},
        {"__init__.py": "__version__: str = '2.1'\n"},
        {"__init__.py": "__version__ = '0'\n__version__ = '2.1'\n"},
    ],
)
def test_version_is_found_where_packages_keep_it(site, files):
    site("frame", files)
    assert installed.find("frame").version == "2.1"


def test_version_is_taken_from_the_distribution_where_the_source_computes_it(site):
    site("frame", {"__init__.py": "__version__ = open('VERSION').read()\n"}, "frame", RECORD=RECORD % "frame")
    assert installed.find("frame").version == "1.0"


def test_a_fork_has_the_import_name_of_the_original(site):
    init = {"__init__.py": "__version__ = '8.4.1'\n"}
    site("frame", init, "frame-opencv-headless", "8.4.1", RECORD=RECORD % "frame")
    assert installed.find("frame").distributions == ("frame-opencv-headless 8.4.1",)


def test_top_level_file_names_the_package_where_there_is_no_record(site):
    site("frame", {"__init__.py": ""}, "onedl-frame", **{"top_level.txt": "frame\n"})
    assert installed.find("frame").distributions == ("onedl-frame 1.0",)


def test_a_hidden_distribution_is_not_named(site, tmp_path, monkeypatch):
    """A layer on PYTHONPATH hides the package of site-packages: the other's version would be a lie."""
    site("frame", {"__init__.py": "__version__ = '1.0'\n"}, "frame", RECORD=RECORD % "frame")
    layer = tmp_path / "layer"
    site("frame", {"__init__.py": "__version__ = '2.0'\n"}, "frame", "2.0", layer, RECORD=RECORD % "frame")
    monkeypatch.syspath_prepend(str(layer))
    importlib.invalidate_caches()
    found = installed.find("frame")
    assert (found.version, found.distributions) == ("2.0", ("frame 2.0",))


def test_a_checkout_has_no_distribution(site):
    site("frame", {"__init__.py": "__version__ = '3.0'\n"})
    found = installed.find("frame")
    assert (found.version, found.distributions) == ("3.0", ())


def test_an_editable_install_names_its_distribution(site, tmp_path, monkeypatch):
    source = tmp_path / "checkout"
    site("frame", {"__init__.py": "__version__ = '3.0'\n"}, folder=source)
    url = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    site("unrelated", {"__init__.py": ""}, "frame", **{"direct_url.json": url, "RECORD": "frame.pth,,\n"})
    monkeypatch.syspath_prepend(str(source))
    importlib.invalidate_caches()
    assert installed.find("frame").distributions == ("frame 1.0",)


def test_damaged_metadata_of_another_package_is_passed_over(site, tmp_path):
    made_up.write_files(tmp_path, {"broken-1.0.dist-info/direct_url.json": "{", "x-.dist-info/RECORD": ""})
    site("frame", {"__init__.py": "__version__ = '3.0'\n"}, "frame", "3.0", RECORD=RECORD % "frame")
    assert installed.find("frame").distributions == ("frame 3.0",)


def test_what_is_not_installed_is_not_found(site, monkeypatch):
    assert installed.find("no_framework_of_this_name") is None
    monkeypatch.setitem(sys.modules, "a_stand_in", type(sys)("a_stand_in"))  # without a spec
    assert installed.find("a_stand_in") is None
