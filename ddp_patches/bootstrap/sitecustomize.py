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
        this = "%d.%d|%s|" % (sys.version_info[0], sys.version_info[1], sys.prefix)
        if not armed.startswith(this):  # to resolve links takes as long as all the rest here
            this = "%d.%d|%s|" % (sys.version_info[0], sys.version_info[1], os.path.realpath(sys.prefix))
        if sys.version_info < (3, 8) or not armed.startswith(this):
            _trace("left alone: this Python is %r, armed is %r" % (this, armed))
            return
        waiting = _TorchFinder(armed[len(this) :])
        sys.meta_path.insert(0, waiting)
        if "torch" in sys.modules:  # the user's own sitecustomize has imported it
            waiting.loaded_finder().start()
        else:
            _trace("waiting for torch")
        if _is_off("DDP_PATCHES_PROPAGATE"):
            from ddp_patches import propagation

            propagation.contain(os.environ)
    except Exception:
        _trace("could not start: %r" % (sys.exc_info()[1],))


class _TorchFinder(object):
    """Waits until somebody imports torch, and then lets ddp_patches/_finder.py wait in its place.

    Most Pythons never import torch: all that they pay is a look at the name of each import. Until it is
    replaced it also answers for the name ddp_patches. The parent may have the package from a source
    checkout or a folder that is on no path of this process; to put the folder around it on sys.path would
    make every other package in there importable.
    """

    waits_for_torch = True  # how ddp_patches/_finder.py knows it

    def __init__(self, directory):
        self._directory = directory

    def find_spec(self, name, path=None, target=None):
        if name == "ddp_patches":
            _find_companions(self._directory)
            return self._spec(name, "__init__.py", [self._directory])
        if name != "torch" and "torch" not in sys.modules:
            return None
        try:
            finder = self.loaded_finder()
        except Exception:
            _trace("could not start: %r" % (sys.exc_info()[1],))
            # A new list: another thread may be going through the old one.
            sys.meta_path = [other for other in sys.meta_path if other is not self]
            return None
        return finder.take_over(name, path, target) if finder is not None else None

    def loaded_finder(self):
        """The module ddp_patches._finder; None while another thread is importing it.

        The import system holds its global lock while it asks a finder, and an import under that lock can
        deadlock with one in another thread: so both modules are executed past the import system. They
        import nothing that is not loaded already.
        """
        package = sys.modules.get("ddp_patches")
        if package is None:
            _find_companions(self._directory)
            package = self._execute(self._spec("ddp_patches", "__init__.py", [self._directory]))
        finder = sys.modules.get("ddp_patches._finder")
        if finder is None:
            finder = package._finder = self._execute(self._spec("ddp_patches._finder", "_finder.py", None))
        elif getattr(finder.__spec__, "_initializing", False):
            return None
        return finder

    def _spec(self, name, file, locations):
        # What importlib.util offers under the same name; importing that costs several milliseconds.
        from _frozen_importlib_external import spec_from_file_location

        place = os.path.join(self._directory, file)
        return spec_from_file_location(name, place, submodule_search_locations=locations)

    def _execute(self, spec):
        from _frozen_importlib import module_from_spec

        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return sys.modules.setdefault(spec.name, module)


def _find_companions(directory):
    """What ddp_patches needs besides is looked for beside it when it is nowhere else."""
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
