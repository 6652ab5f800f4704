"""Waits until torch is imported, then starts the engine. Standard library only.

A finder on ``sys.meta_path`` looks at names and finds nothing. In a process that the bootstrap has armed
this module is loaded only when torch is about to be imported; until then the bootstrap's own finder waits
(``bootstrap/sitecustomize.py``), which is all that a Python pays which never imports torch.

The moment at which a module has finished is taken from the import system itself, which sets
``_initializing`` of the module's spec to False as its last step: the class of that spec is exchanged for
one that notices. No loader is wrapped, so ``torch.__loader__`` stays what it is.
"""

import os
import sys

# Annotations are quoted: to import typing, or even __future__, costs more than this module does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, MutableMapping, Optional

    Callback = Callable[[], Any]

_TRIGGER = "torch"
_OFF_WORDS = ("0", "off", "false", "no")  # as in settings.py, which is too heavy to import here
_SAID = "DDP_PATCHES_WARNED"

_finder: "Optional[_TorchFinder]" = None  # our entry on sys.meta_path while we wait
_engine_started = False
_previous_environment: "Any" = None  # what arm() replaced, for disarm_children()


def is_off() -> bool:
    """Whether ``DDP_PATCHES=0`` turns everything off."""
    return os.environ.get("DDP_PATCHES", "").strip().lower() in _OFF_WORDS


def trace(text: str) -> None:
    """One line on stderr for each decision, where ``DDP_PATCHES_TRACE=1``."""
    if os.environ.get("DDP_PATCHES_TRACE", "") not in ("", "0"):
        _write(text)


def is_first_to_say(text: str, environ: "Optional[MutableMapping[str, str]]" = None) -> bool:
    """Whether this process should print ``text``: once per job, from rank 0 or from outside a job.

    Child processes know by their environment (``environ``, else this process's) what has been said.
    """
    import zlib

    environ = os.environ if environ is None else environ
    rank = environ.get("RANK") or environ.get("SLURM_PROCID") or "0"
    mark = "%08x" % zlib.crc32(text.encode("utf-8", "replace"))
    said = [other for other in environ.get(_SAID, "").split(",") if other]
    if rank not in ("0", "-1") or mark in said:
        return False
    environ[_SAID] = ",".join(said + [mark])
    return True


def start() -> None:
    """Arm this process: the engine starts when torch has been imported, or now if it already is.

    May be called any number of times; a later call lets a running engine take over new settings.
    """
    if is_off():
        trace("off: DDP_PATCHES=%s" % os.environ.get("DDP_PATCHES"))
        return
    torch = _loaded_torch()
    if torch is not None and not is_being_imported(torch):
        _start_engine()
        return
    if not is_waiting():
        trace("waiting for torch")
    _wait()
    if torch is not None:
        when_finished(spec_of(torch), _look_again)


def take_over(name: str, path: "Any", target: "Any") -> "Any":
    """Wait from now on in the place of the bootstrap's finder, and answer what it was asked."""
    return _wait().find_spec(name, path, target)


def is_waiting() -> bool:
    """Whether the engine will start when torch is imported."""
    return any(map(_is_ours, sys.meta_path))


def stop() -> None:
    """Stop waiting for torch."""
    global _engine_started
    _leave_meta_path()
    _engine_started = False


def arm_children(keywords: "Optional[Mapping[str, str]]" = None) -> None:
    """Let the processes that this one starts have the same patches, and ``keywords`` as settings.

    Without ``keywords``, which ``enable()`` gives, the variable ``DDP_PATCHES_PROPAGATE`` is obeyed.
    """
    global _previous_environment
    unwanted = os.environ.get("DDP_PATCHES_PROPAGATE", "").strip().lower() in _OFF_WORDS
    if is_off() or (unwanted and keywords is None):  # who gives keywords has looked at all settings
        return
    from . import propagation

    restore_environment()
    _previous_environment = propagation.arm(os.environ, keywords or {})


def restore_environment() -> None:
    """Take back what :func:`arm_children` put into the environment."""
    global _previous_environment
    if _previous_environment is not None:
        from . import propagation

        propagation.disarm(os.environ, _previous_environment)
        _previous_environment = None


def disarm_children() -> None:
    """Let the processes that this one starts be left alone, also where a parent of this one armed them.

    Settings from a parent stay, for an ``enable()`` that follows.
    """
    restore_environment()
    from . import propagation

    disarmed = dict(os.environ)
    propagation.disarm(disarmed)
    for name in (propagation.ARMED, "PYTHONPATH"):
        if name in disarmed:
            os.environ[name] = disarmed[name]
        else:
            os.environ.pop(name, None)


def users_environment() -> "Dict[str, str]":
    """The environment without what :func:`arm_children` put there for an earlier ``enable()``."""
    environ = dict(os.environ)
    if _previous_environment is not None:
        from . import propagation

        propagation.disarm(environ, _previous_environment)
    return environ


# A module's own dict, whatever its class does on attribute access: that is how lazy modules are triggered.
_dict_of: "Any" = vars(type(sys))["__dict__"].__get__


def namespace_of(module: "Any") -> "Optional[Dict[str, Any]]":
    """The dict of a module, read so that no lazy module is triggered; None for anything else."""
    try:
        found: Optional[Dict[str, Any]] = _dict_of(module)
    except TypeError:  # any object may lie in sys.modules
        return None
    return found


def spec_of(module: "Any") -> "Any":
    """``module.__spec__``, without triggering a lazy module; None where there is none."""
    return (namespace_of(module) or {}).get("__spec__")


def is_being_imported(module: "Any") -> bool:
    """Whether the import system is still executing ``module``."""
    return bool(getattr(spec_of(module), "_initializing", False))


# The import system's own ModuleSpec; to ask a spec for its class spares the import of importlib.machinery.
_Spec: "Any" = type(sys.__spec__)


class _WatchedSpec(_Spec):
    """A spec that says when its module is complete."""

    @property
    def _initializing(self) -> "Any":
        return self.__dict__.get("_initializing", False)

    @_initializing.setter
    def _initializing(self, value: "Any") -> None:
        self.__dict__["_initializing"] = value
        if not value:
            _finish(self, self.__dict__.get("_ddp_patches_waiting", []))


def when_finished(spec: "Any", callback: "Callback") -> bool:
    """Call ``callback()`` once when the running import of the module of ``spec`` has finished or failed.

    At that moment the import system still holds the module's lock: a callback must not wait for
    another thread. Returns False, and does nothing, for a spec whose class cannot be exchanged (another
    type than the import system's own).
    """
    waiting = _watch(spec, callback)
    if waiting is None:
        return False
    if not spec._initializing:  # it has finished between the caller's look and ours
        _finish(spec, waiting)
    return True


def _watch(spec: "Any", callback: "Callback") -> "Optional[List[Callback]]":
    if type(spec) not in (_Spec, _WatchedSpec):
        return None
    waiting: List[Callback] = spec.__dict__.setdefault("_ddp_patches_waiting", [])
    if callback not in waiting:
        waiting.append(callback)
    spec.__class__ = _WatchedSpec
    return waiting


def _finish(spec: "Any", waiting: "List[Callback]") -> None:
    spec.__dict__.pop("_ddp_patches_waiting", None)
    spec.__class__ = _Spec
    while True:
        try:
            callback = waiting.pop(0)  # two threads may be here: each callback is run by one of them
        except IndexError:
            return
        try:
            callback()
        except Exception as error:  # the user's import must not fail because of us
            if getattr(error, "strict", False):  # unless the user asked for it
                raise
            trace("a callback after import failed: %r" % (error,))


def _wait() -> "_TorchFinder":
    global _finder
    if _finder is None:
        _leave_meta_path()
        _finder = _TorchFinder()
        sys.meta_path.insert(0, _finder)
    return _finder


class _TorchFinder:
    """Finds nothing itself; notices when somebody is about to import torch, or has done so past us.

    The import system holds its global lock while it asks a finder. An import of ours under that lock
    can deadlock with one in another thread, so nothing is started from here.
    """

    waits_for_torch = True

    def __init__(self) -> None:
        self._asking = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """None; for torch itself what the other finders say."""
        if self is not _finder:
            return None
        torch = _loaded_torch()
        if torch is not None:  # a finder before us has found it, or it is just running
            _watch(spec_of(torch) if is_being_imported(torch) else _outermost_import(), _look_again)
        elif name == _TRIGGER and not self._asking:
            self._asking = True
            try:
                # As importlib.util.find_spec does, which costs an import.
                spec = sys.modules["_frozen_importlib"]._find_spec(name, path, target)
            finally:
                self._asking = False
            _watch(spec, _look_again)
            return spec
        return None


def _outermost_import() -> "Any":
    """The spec of what this thread has begun to import first, None if it imports nothing.

    Whatever else it is importing may be half complete, and may be needed by the engine.
    """
    found = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        found = spec if getattr(spec, "_initializing", False) else found
        frame = frame.f_back
    return found


def _loaded_torch() -> "Any":
    """torch, complete or not; None while there is none, or only a placeholder that is not yet loaded."""
    torch = sys.modules.get(_TRIGGER)
    return None if type(torch).__name__ == "_LazyModule" else torch  # importlib.util.LazyLoader


def _look_again() -> None:
    torch = _loaded_torch()
    # None after a failed import: the next attempt comes past us again.
    if _finder is not None and torch is not None and not is_being_imported(torch):
        _start_engine()


def _start_engine() -> None:
    global _engine_started
    _leave_meta_path()
    trace("torch is imported: %s" % ("settings taken again" if _engine_started else "starting the engine"))
    _engine_started = True
    try:
        from .engine import control

        control.enable_from_active_settings()
    except Exception as error:
        if getattr(error, "strict", False):
            raise
        # Whatever is wrong with us (a broken wrapt, say), the user's import of torch goes on.
        text = "off, nothing is patched: %r" % (error,)
        if is_first_to_say(text):
            _write(text)


def _leave_meta_path() -> None:
    global _finder
    # A new list: another thread may be going through the old one, and would miss the entry behind ours.
    if is_waiting():
        sys.meta_path = [finder for finder in sys.meta_path if not _is_ours(finder)]
    _finder = None


def _is_ours(finder: "Any") -> bool:
    return "waits_for_torch" in vars(type(finder))


def _write(text: str) -> None:
    try:
        sys.stderr.write("ddp_patches[%d] %s\n" % (os.getpid(), text))
    except Exception:  # there may be no stderr, or a closed one
        pass
