"""Lets real frameworks train on a CPU machine, off the network. Put this folder on PYTHONPATH.

An index that offers a CPU build of torch need not offer the torchvision made for it. The CUDA build then
cannot load its compiled operators, and its import ends in "operator torchvision::nms does not exist". This
defines that operator in torch, which is all that detection needs. No installed file is changed, and where
torchvision can load its own operators nothing is done.

mmcv's own operators take half an hour to build. Where there are none, all seem to be there, and calling one
raises; only the one that detectors need for validation works.

torchvision's roi_align imports torch's compiler, for one question: 6 of the 10 seconds of CPU that an import
of torchvision takes. It is answered here. Whoever needs the compiler imports it as always.

Connections of Python's sockets to other machines are refused: old Ultralytics releases ask public name
servers whether they are online, and then download fonts and post statistics.
"""

import contextlib
import errno
import importlib.abc
import importlib.machinery
import sys
import types

_library = None  # torch drops the operators of a library that nobody holds


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself; has something done before and after a module is executed."""

    def __init__(self, callbacks):
        self._callbacks = callbacks  # context managers, by the module's name

    def find_spec(self, name, path=None, target=None):
        if name not in self._callbacks:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        if spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._callbacks[name])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, callback):
        self._loader = loader
        self._callback = callback

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # Others read data files and source through the module's loader: they get the real one.
        module.__spec__.loader = module.__loader__ = self._loader
        with self._callback():
            self._loader.exec_module(module)


def _afterwards(function):
    @contextlib.contextmanager
    def manager():
        yield
        function()

    return manager


@contextlib.contextmanager
def _answering_for_the_compiler():
    """While torchvision.ops.roi_align is executed, which asks whether it may compile itself: no."""
    names = [] if "torch._dynamo" in sys.modules else ["torch._dynamo", "torch._dynamo.utils"]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].is_compile_supported = lambda device: False
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _define_operators():
    """Define the two operators whose shapes torchvision registers in the next step of its import."""
    global _library
    if sys.modules["torchvision.extension"]._has_ops():
        return
    import torch

    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.impl("nms", _nms, "CPU")


def _announce_operators():
    """Let torchvision's own check pass. Any earlier, it would register shapes of operators we do not have."""
    if _library is not None:
        sys.modules["torchvision.extension"]._has_ops = lambda: True


def _nms(boxes, scores, iou_threshold, offset=0):
    """Indices of the boxes kept, best score first; boxes are (N, 4) corners x1, y1, x2, y2, scores (N,).

    With an `offset` of 1 the lower right corner is a pixel that belongs to the box.
    """
    import torch

    low, high = boxes[:, :2], boxes[:, 2:] + offset
    areas = (high - low).prod(dim=1)
    remaining = scores.argsort(descending=True, stable=True)
    kept = []
    while remaining.numel():
        best, remaining = remaining[0], remaining[1:]
        kept.append(best)
        sides = torch.minimum(high[best], high[remaining]) - torch.maximum(low[best], low[remaining])
        overlap = sides.clamp(min=0).prod(dim=1)
        # Boxes without area give a NaN, which is kept, as the compiled operator does.
        too_close = overlap / (areas[best] + areas[remaining] - overlap) > iou_threshold
        remaining = remaining[~too_close]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.long)


class _CompiledOps(types.ModuleType):
    """`mmcv._ext`: every operator has a name, few have a body."""

    nms = staticmethod(_nms)

    # Training of mmdet 2.x lists them among the versions of its surroundings.
    @staticmethod
    def get_compiler_version():
        return "none"

    get_compiling_cuda_version = get_compiler_version

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def operator(*arguments, **keywords):
            raise NotImplementedError(
                "mmcv's %s is not compiled, and the tests have no stand-in for it" % name
            )

        return operator


class _LastFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `mmcv._ext` where nobody else does."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "mmcv._ext" else None

    def create_module(self, spec):
        return _CompiledOps(spec.name)

    def exec_module(self, module):
        pass


def _stay_on_this_machine():
    """Refuse connections that leave this machine, at once and as an unreachable network does."""
    import socket

    connect = socket.socket.connect

    def connect_here(self, address):
        # Addresses of other families (a Unix socket's path) never leave the machine.
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            raise OSError(errno.ENETUNREACH, "the tests stay on this machine", str(address[0]))
        return connect(self, address)

    socket.socket.connect = connect_here


def _is_here(host):
    import socket

    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")


sys.meta_path.insert(
    0,
    _Finder(
        {
            "socket": _afterwards(_stay_on_this_machine),
            "torchvision": _afterwards(_announce_operators),
            "torchvision.extension": _afterwards(_define_operators),
            "torchvision.ops.roi_align": _answering_for_the_compiler,
        }
    ),
)
sys.meta_path.append(_LastFinder())
