"""Where a thread stands, in the words of the user's code rather than the libraries below it."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from types import FrameType
from typing import Iterable, List, Optional, Tuple

# Frames inside these say how something is done, not what is being done.
_BELOW = ("torch", "numpy", "tqdm", "PIL", "cv2", "ddp_patches", "wrapt")

Place = Tuple[str, int, str]  # file, line, function


def main_frame() -> Optional[FrameType]:
    """The innermost frame of the main thread."""
    ident = threading.main_thread().ident
    return sys._current_frames().get(ident) if ident is not None else None


def main_thread_places() -> List[Place]:
    """The main thread's stack, innermost first; empty if it cannot be read."""
    return places(main_frame())


def places(frame: Optional[FrameType]) -> List[Place]:
    """The stack from ``frame`` outwards."""
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def error_places(error: BaseException) -> List[Place]:
    """The frames through which ``error`` came, innermost first."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)]


def telling(stack: Iterable[Place]) -> Optional[Place]:
    """The innermost place outside the standard library and the libraries below the framework."""
    stack = list(stack)
    for place in stack:
        if not is_below(place[0]):
            return place
    return stack[0] if stack else None


def describe(place: Optional[Place]) -> str:
    """``data/build.py:188 in cache_labels``."""
    if place is None:
        return "an unknown place"
    file, line, function = place
    return "%s:%d in %s" % ("/".join(file.replace(os.sep, "/").split("/")[-2:]), line, function)


def describe_fully(place: Place) -> str:
    """``/home/me/data/build.py:188 in cache_labels``."""
    return "%s:%d in %s" % place


_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"])


def is_below(file: str) -> bool:
    """Whether a file belongs to the standard library or to a library below the frameworks."""
    if file.startswith("<frozen"):
        return True
    path = os.path.realpath(file)
    if path.startswith(_COMMANDS):
        return False
    installed = _INSTALLED.search(path)
    if installed is not None:
        # Ultralytics carries a progress bar of its own, utils/tqdm.py.
        return installed.group(1).partition(".")[0] in _BELOW or path.endswith(os.sep + "tqdm.py")
    return path.startswith((_STDLIB + os.sep, *_roots()))


_COMMANDS = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "cli") + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")


def _roots() -> Tuple[str, ...]:
    """Of the libraries below that run from somewhere else."""
    found = []
    for name in _BELOW:
        source = getattr(sys.modules.get(name), "__file__", None)
        if source and "-packages" not in source:
            found.append(os.path.dirname(os.path.realpath(source)) + os.sep)
    return tuple(found)
