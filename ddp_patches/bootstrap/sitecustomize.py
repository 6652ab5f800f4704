"""Run by every Python that is started with this folder on PYTHONPATH.

Runs the user's own sitecustomize, which this one hides, and then lets ddp_patches wait for torch, if
this Python belongs to the installation named in DDP_PATCHES_ARMED. Any Python may come past here, also
2.7 and those in which nothing of ours is installed: so old syntax, no imports but os and sys, and no
exception of our own.
"""

import os
import sys


def _trace(text):
    # As in ddp_patches/_finder.py, which not every Python can import.
    if os.environ.get("DDP_PATCHES_TRACE", "") not in ("", "0") and sys.stderr is not None:
        sys.stderr.write("ddp_patches[%d] %s\n" % (os.getpid(), text))


def _is_off(variable):
    return os.environ.get(variable, "").strip().lower() in ("0", "off", "false", "no")


def _run_the_users_own(ours):
    """Import the sitecustomize that Python would have run without us, if there is one.

    By a real import, with our folder off sys.path and our entry out of sys.modules, so that modules,
    packages and anything that other finders provide work, and the name ends up as the user's module.
    Our folder stays on PYTHONPATH, for the children of this process.
    """
    here = os.path.normcase(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [
        entry
        for entry in sys.path
        if not (isinstance(entry, str) and os.path.normcase(os.path.abspath(entry)) == here)
    ]
    sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        # Python 2 has no name here; it is silent about every ImportError of a sitecustomize.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        # The import system insists on finding under this name what it has just executed.
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _start_ours():
    try:
        armed = os.environ.get("DDP_PATCHES_ARMED", "")
        if _is_off("DDP_PATCHES"):
            _trace("off: DDP_PATCHES=%s" % os.environ["DDP_PATCHES"])
            return
        this = "%d.%d|%s|" % (sys.version_info[0], sys.version_info[1], os.path.realpath(sys.prefix))
        if sys.version_info < (3, 8) or not armed.startswith(this):
            _trace("left alone: this Python is %r, armed is %r" % (this, armed))
            return
        _load_package(armed[len(this) :])
        from ddp_patches import _finder

        _finder.start()
        if _is_off("DDP_PATCHES_PROPAGATE"):
            from ddp_patches import propagation

            propagation.contain(os.environ)
    except Exception:
        _trace("could not start: %r" % (sys.exc_info()[1],))


def _load_package(directory):
    """Import ddp_patches from ``directory``, wherever that is.

    The parent may have it from a source checkout or a folder that is on no path of this process. To put
    the folder around it on sys.path would make every other package in there importable, so the one
    package is loaded by its place; what it needs besides is looked for there when it is nowhere else.
    """
    if "ddp_patches" in sys.modules:  # the user's own sitecustomize may have imported it
        return
    try:
        # What importlib.util offers under the same names; importing that costs several milliseconds.
        from _frozen_importlib import module_from_spec
        from _frozen_importlib_external import spec_from_file_location
    except ImportError:
        from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location(
        "ddp_patches", os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
    )
    module = module_from_spec(spec)
    sys.modules["ddp_patches"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["ddp_patches"]
        raise
    around = os.path.dirname(directory)
    if around not in sys.path:
        sys.meta_path.append(_Companions(around))


class _Companions(object):
    """The packages that ddp_patches needs, from the folder where it lies; asked after everybody else."""

    def __init__(self, folder):
        self._folder = folder

    def find_spec(self, name, path=None, target=None):
        if path is not None or name not in ("wrapt", "packaging"):
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [self._folder])


def _run():
    # Held here to the end: Python 2 clears the globals of a module when its last reference goes.
    ours = sys.modules.get("sitecustomize")
    try:
        _run_the_users_own(ours)
    except Exception:
        # Ours starts all the same; then Python prints what it always prints about a failing sitecustomize.
        _start_ours()
        raise
    _start_ours()


_run()
