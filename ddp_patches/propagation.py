"""The environment through which child processes get the patches. Standard library only.

Python runs the module ``sitecustomize`` when it starts. Our ``bootstrap`` directory holds one and goes
first on PYTHONPATH, which subprocess, multiprocessing, torchrun and srun hand on to every child, and
they to theirs. ``DDP_PATCHES_ARMED`` names the installation that is meant, so that a Python of another
version or another environment, which may be unable to import us, is left alone.

Python's switches ``-E``, ``-I`` and ``-S`` ignore PYTHONPATH or ``sitecustomize``: such children cannot
be reached, nor those that somebody starts with an environment of their own making.
"""

import os
import sys

TYPE_CHECKING = False  # as in _finder.py; annotations are quoted, since even __future__ costs an import
if TYPE_CHECKING:
    from typing import Dict, Mapping, MutableMapping, Optional, Tuple

    Previous = Dict[str, Tuple[Optional[str], str]]

ARMED = "DDP_PATCHES_ARMED"
KEYWORDS = "DDP_PATCHES_KEYWORDS"
SETTING_PREFIX = "DDP_PATCHES_"  # as in settings.py, which is too heavy to import here

# Taken at import: a relative sys.path entry makes __file__ relative, and the program may change folder.
PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def bootstrap_directory() -> str:
    """The folder that goes on PYTHONPATH. It holds nothing but our ``sitecustomize``."""
    return os.path.join(PACKAGE_DIRECTORY, "bootstrap")


def installation() -> str:
    """This Python and this package, as DDP_PATCHES_ARMED names them: version, prefix and our folder.

    The bootstrap file builds the first two parts again, in a form that is valid on any Python.
    """
    major, minor = sys.version_info[:2]
    return f"{major}.{minor}|{os.path.realpath(sys.prefix)}|{PACKAGE_DIRECTORY}"


def obstacle() -> str:
    """Why no child of this installation can be armed, or an empty string."""
    if os.pathsep in bootstrap_directory():
        # PYTHONPATH has no way to write such a folder down.
        return f"the folder of ddp_patches, {PACKAGE_DIRECTORY}, has {os.pathsep!r} in its name"
    if not os.path.isfile(os.path.join(bootstrap_directory(), "sitecustomize.py")):
        return f"{bootstrap_directory()} holds no sitecustomize.py (is ddp_patches inside a zip file?)"
    return ""


def arm(
    environ: "MutableMapping[str, str]", settings_keywords: "Mapping[str, str] | None" = None
) -> "Previous":
    """Let the processes that are started with ``environ`` load ddp_patches when they import torch.

    ``settings_keywords`` holds settings by field name, as text; the children see them as given by
    keyword. What the user has on PYTHONPATH stays, behind ours. A second call changes nothing. Returns,
    for each variable that was touched, the value before (None: there was none) and the value now, for
    :func:`disarm`; empty where :func:`obstacle` has an answer.
    """
    previous: Previous = {}
    if obstacle():
        return previous
    wanted = {"PYTHONPATH": _with_bootstrap(environ.get("PYTHONPATH", "")), ARMED: installation()}
    if settings_keywords:
        names = _names(environ.get(KEYWORDS, ""))
        wanted[KEYWORDS] = ",".join(names + [name for name in settings_keywords if name not in names])
        for name, value in settings_keywords.items():
            wanted[SETTING_PREFIX + name.upper()] = value
    for variable, value in wanted.items():
        before = environ.get(variable)
        if before != value:
            previous[variable] = (before, value)
            environ[variable] = value
    return previous


def disarm(environ: "MutableMapping[str, str]", previous: "Previous | None" = None) -> None:
    """Take back what :func:`arm` did, given what it returned.

    A variable that somebody else has changed since then keeps that change; of PYTHONPATH only our own
    folder is then taken out. Without ``previous`` everything of ours goes, also what a parent process
    put there: our folder, the marker, and the settings that came from keywords.
    """
    if previous is None:
        settings = [SETTING_PREFIX + name.upper() for name in _names(environ.get(KEYWORDS, ""))]
        for variable in [KEYWORDS] + settings:
            environ.pop(variable, None)
        contain(environ)
        return
    for variable, (before, ours) in previous.items():
        if environ.get(variable) != ours:
            if variable == "PYTHONPATH":
                _take_bootstrap_out(environ)
        elif before is None:
            del environ[variable]
        else:
            environ[variable] = before


def contain(environ: "MutableMapping[str, str]") -> None:
    """End the way to further processes, and leave the settings of this one (``propagate`` is off)."""
    environ.pop(ARMED, None)
    _take_bootstrap_out(environ)


def _with_bootstrap(python_path: str) -> str:
    # First, because the first sitecustomize on the path is the only one that Python runs; ours runs the
    # next one itself. An empty PYTHONPATH is no entry at all, but "/a:" has two, of which the second means
    # the current folder: so no separator without something behind it, and the user's text stays as it is.
    rest = _without_bootstrap(python_path)
    return bootstrap_directory() + os.pathsep + rest if rest else bootstrap_directory()


def _without_bootstrap(python_path: str) -> str:
    if bootstrap_directory() not in python_path:
        return python_path
    return os.pathsep.join(entry for entry in python_path.split(os.pathsep) if entry != bootstrap_directory())


def _take_bootstrap_out(environ: "MutableMapping[str, str]") -> None:
    before = environ.get("PYTHONPATH")
    if before is None:
        return
    rest = _without_bootstrap(before)
    if rest:
        environ["PYTHONPATH"] = rest
    elif before:
        del environ["PYTHONPATH"]


def _names(text: str) -> "list[str]":
    return [name for name in text.split(",") if name]
