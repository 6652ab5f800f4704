"""Which frameworks are installed, in which version, from which distribution, without importing them.

Distribution names say little: forks (``ultralytics-opencv-headless``, ``onedl-mmdetection``) install the
same import name, a source checkout has no distribution at all. So the import name leads, and the version
is the one that the package's source gives itself, since that is what the patches are chosen by.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Dict, Iterable, List, Optional, Tuple
from urllib.parse import urlparse
from urllib.request import url2pathname

FRAMEWORKS = ("torch", "ultralytics", "yolov5", "mmdet", "mmdet3d", "mmengine", "mmcv")

# Where packages keep ``__version__``, in the order in which their ``__init__`` would take it.
_VERSION_FILES = ("__init__.py", "version.py", "_version.py", "__about__.py")


@dataclasses.dataclass(frozen=True)
class Package:
    """An installed package: ``distributions`` holds ``name version`` texts, ``version`` may be empty."""

    name: str
    version: str
    distributions: Tuple[str, ...]
    path: str


def locate(name: str) -> Optional[ModuleSpec]:
    """The spec of a top-level module, or None. Asking for a top-level name imports nothing."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a stand-in in sys.modules without a spec, say
        return None


def find(name: str) -> Optional[Package]:
    """The package that ``import name`` would load, or None."""
    return find_all([name]).get(name)


def find_all(names: Iterable[str]) -> Dict[str, Package]:
    """Those of ``names`` that are installed, by import name."""
    folders = {}
    for name in names:
        folder = _folder(name)
        if folder:
            folders[name] = folder
    distributions = _distributions(folders)
    found = {}
    for name, folder in folders.items():
        version = version_in_source(folder)
        if not version and distributions[name]:
            version = distributions[name][0][1]
        texts = tuple("%s %s" % pair for pair in distributions[name])
        found[name] = Package(name, version, texts, folder)
    return found


def _folder(name: str) -> str:
    spec = locate(name)
    if spec is None:
        return ""
    if spec.submodule_search_locations:
        return os.path.abspath(next(iter(spec.submodule_search_locations)))
    return os.path.abspath(spec.origin) if spec.origin and os.path.exists(spec.origin) else ""


def version_in_source(folder: str) -> str:
    """``__version__`` as the package's source writes it down as a text, or an empty string."""
    for name in _VERSION_FILES:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                version = version_in(ast.parse(file.read()))
        except (OSError, SyntaxError, ValueError):
            continue
        if version:
            return version
    return ""


def version_in(tree: ast.Module) -> str:
    """The last literal text that is assigned to ``__version__`` at the top of a module, or ``""``."""
    version = ""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: List[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets):
            value = getattr(node.value, "value", None)
            version = value if isinstance(value, str) else version
    return version


def _distributions(folders: Dict[str, str]) -> Dict[str, List[Tuple[str, str]]]:
    """(name, version) of the distributions that put each package where it lies; one pass over all."""
    found: Dict[str, List[Tuple[str, str]]] = {name: [] for name in folders}
    for distribution in metadata.distributions():
        try:
            for name in _provided(distribution, folders):
                if _is_at(distribution, name, folders[name]):
                    entry = (distribution.metadata["Name"], distribution.version)
                    if entry not in found[name]:
                        found[name].append(entry)
        except Exception:  # half-removed metadata of something else must not end the overview
            continue
    return found


def _provided(distribution: metadata.Distribution, names: Iterable[str]) -> List[str]:
    """Those of ``names`` that this distribution says it installs."""
    # packages_distributions() came with Python 3.10, and not every build tool writes top_level.txt.
    top_level = (distribution.read_text("top_level.txt") or "").split()
    record = "\n" + (distribution.read_text("RECORD") or "").replace("\r\n", "\n")
    source = _editable_folder(distribution)
    return [
        name
        for name in names
        if name in top_level
        or "\n%s/__init__.py," % name in record
        or (source and any(os.path.isdir(os.path.join(source, part, name)) for part in ("", "src")))
    ]


def _is_at(distribution: metadata.Distribution, name: str, folder: str) -> bool:
    """Whether this distribution's ``name`` is the one at ``folder``, and not one that it hides."""
    here = os.path.realpath(folder)
    if os.path.realpath(str(distribution.locate_file(name))) == here:
        return True
    source = _editable_folder(distribution)
    return bool(source) and _is_below(here, os.path.realpath(source))


def _editable_folder(distribution: metadata.Distribution) -> str:
    """The source folder of an editable install, or an empty string."""
    try:
        described = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not described.get("dir_info", {}).get("editable"):
            return ""
        return url2pathname(urlparse(described["url"]).path)
    except (ValueError, KeyError, AttributeError):
        return ""


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)
