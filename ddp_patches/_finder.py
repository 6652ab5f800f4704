"""Waits until torch is imported, then starts the engine. Standard library only.

This is all that a Python pays which never imports torch: a finder on ``sys.meta_path`` that looks at
names and finds nothing. The moment at which a module has finished is taken from the import system
itself, which sets ``_initializing`` of the module's spec to False as its last step: the class of that
spec is exchanged for one that notices. No loader is wrapped, so ``torch.__loader__`` stays what it is.
"""

import os
import sys

_TRIGGER = "torch"
_OFF_WORDS = ("0", "off", "false", "no")  # as in settings.py, which is too heavy to import here

_finder = None  # our entry on sys.meta_path while we wait
_engine_started = False
_previous_environment = None  # what arm() replaced, for disarm_children()


def is_off():
    """Whether ``DDP_PATCHES=0`` turns everything off."""
    return os.environ.get("DDP_PATCHES", "").strip().lower() in _OFF_WORDS


def trace(text):
    """One line on stderr for each decision, where ``DDP_PATCHES_TRACE=1``."""
    if os.environ.get("DDP_PATCHES_TRACE", "") not in ("", "0"):
        sys.stderr.write("ddp_patches[%d] %s\n" % (os.getpid(), text))


def start():
    """Arm this process: the engine starts when torch has been imported, or now if it already is.

    May be called any number of times; a later call lets a running engine take over new settings.
    """
    global _finder
    if is_off():
        trace("off: DDP_PATCHES=%s" % os.environ.get("DDP_PATCHES"))
        return
    if _TRIGGER in sys.modules:
        _torch_appeared()
    elif _finder is None:
        trace("waiting for torch")
        _finder = _TorchFinder()
        sys.meta_path.insert(0, _finder)


def stop():
    """Stop waiting for torch."""
    global _engine_started
    _leave_meta_path()
    _engine_started = False


def arm_children(keywords=None):
    """Let the processes that this one starts have the same patches, and ``keywords`` as settings."""
    global _previous_environment
    if is_off() or os.environ.get("DDP_PATCHES_PROPAGATE", "").strip().lower() in _OFF_WORDS:
        return
    from . import propagation

    disarm_children()
    _previous_environment = propagation.arm(os.environ, keywords or {})


def disarm_children():
    """Take back what :func:`arm_children` put into the environment."""
    global _previous_environment
    if _previous_environment is not None:
        from . import propagation

        propagation.disarm(os.environ, _previous_environment)
        _previous_environment = None


def when_finished(spec, callback):
    """Call ``callback()`` when the module of ``spec``, which is being imported, has finished or failed.

    Returns False, and does nothing, for a spec whose class cannot be exchanged (another type than
    the import system's own).
    """
    if isinstance(spec, _watched_spec_class()):
        spec.__dict__["_ddp_patches_callbacks"].append(callback)
        return True
    if type(spec) is not type(sys.__spec__):
        return False
    spec.__dict__["_ddp_patches_callbacks"] = [callback]
    spec.__class__ = _watched_spec_class()
    return True


def is_being_imported(module):
    """Whether the import system is still executing ``module``."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


_WatchedSpec = None


def _watched_spec_class():
    # Made on first use: sys.__spec__ is the import system's own ModuleSpec, and asking it for its
    # class spares the import of importlib.machinery.
    global _WatchedSpec
    if _WatchedSpec is None:

        class WatchedSpec(type(sys.__spec__)):  # type: ignore[misc]
            @property
            def _initializing(self):
                return self.__dict__.get("_initializing", False)

            @_initializing.setter
            def _initializing(self, value):
                self.__dict__["_initializing"] = value
                if value:
                    return
                callbacks = self.__dict__.pop("_ddp_patches_callbacks", ())
                self.__class__ = type(sys.__spec__)
                for callback in callbacks:
                    try:
                        callback()
                    except Exception as error:  # the user's import must not fail because of us
                        if getattr(error, "strict", False):  # unless he asked for it
                            raise
                        trace("a callback after import failed: %r" % (error,))

        _WatchedSpec = WatchedSpec
    return _WatchedSpec


class _TorchFinder(object):
    """Finds nothing itself; notices when somebody is about to import torch, or has done so past us."""

    def __init__(self):
        self._watching = False

    def find_spec(self, name, path=None, target=None):
        if self._watching:
            return None
        if name != _TRIGGER:
            if _TRIGGER in sys.modules:  # a finder that was put before us has loaded it
                _torch_appeared()
            return None
        for finder in list(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec is not None else None
            if spec is not None:
                self._watching = when_finished(spec, self._finished)
                return spec
        return None

    def _finished(self):
        self._watching = False
        if _TRIGGER in sys.modules:  # else the import failed: the next attempt comes past us again
            _torch_appeared()


def _torch_appeared():
    torch = sys.modules[_TRIGGER]
    if is_being_imported(torch):
        if _finder is not None:
            if _finder._watching:
                return
            _finder._watching = True
        if when_finished(torch.__spec__, _torch_appeared_again):
            return
    _start_engine()


def _torch_appeared_again():
    if _finder is not None:
        _finder._watching = False
    if _TRIGGER in sys.modules:
        _start_engine()


def _start_engine():
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
        sys.stderr.write("ddp_patches: off in process %d, nothing is patched: %r\n" % (os.getpid(), error))


def _leave_meta_path():
    global _finder
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _finder = None
