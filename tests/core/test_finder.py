"""Waiting for torch (`ddp_patches/_finder.py`): promises 1, 7 and 9 of the design, with a made-up torch.

Each test runs a Python of its own. "The engine is on" means that `ddp_patches.engine.control` says so.
"""

from __future__ import annotations

import os
import sys

import pytest

from support import made_up

ON = """
import sys
def on():
    control = sys.modules.get("ddp_patches.engine.control")
    return control is not None and control.is_enabled()
"""


@pytest.fixture
def folder(tmp_path):
    made_up.write_files(tmp_path, {"on.py": ON})
    return made_up.write(tmp_path)


ALONE = "__version__ = '2.99.0'\n"
NOSY = "import sys\nsys.early = 'ddp_patches.engine.control' in sys.modules\n"


@pytest.mark.parametrize("torch", [made_up.PACKAGES["torch/__init__.py"], ALONE, NOSY], ids=len)
def test_the_engine_starts_when_torch_has_finished_and_not_before(folder, torch):
    """Also for a torch that imports nothing, and so never asks a finder while it runs."""
    made_up.write(folder, torch____init__=torch)
    program = """
        import sys, on, ddp_patches.auto
        print(on.on())
        import torch
        print(on.on(), getattr(sys, "early", False))
    """
    assert made_up.lines(folder, program) == ["False", "True False"]


def test_looking_for_torch_without_importing_it_does_not_make_us_deaf(folder):
    """`importlib.util.find_spec("torch")` is how half of all packages ask whether torch is installed."""
    program = """
        import importlib.util, on, ddp_patches.auto
        for _ in range(2):
            assert importlib.util.find_spec("torch") is not None
        import json.tool
        print(on.on())
        import torch
        print(on.on())
    """
    assert made_up.lines(folder, program) == ["False", "True"]


def test_spec_and_loader_of_torch_are_those_of_a_python_without_us(folder):
    program = """
        import json, sys
        if sys.argv[1:]: import ddp_patches.auto
        import torch, torch.late
        def shape(module):
            spec = module.__spec__
            return [str(type(spec)), sorted(vars(spec)), str(type(spec.loader)), str(type(module.__loader__)),
                    spec._initializing, module.__loader__ is spec.loader, str(type(module))]
        print(json.dumps([shape(torch), shape(torch.late)]))
    """
    with_us = program.replace("if sys.argv[1:]: ", "")
    assert made_up.lines(folder, with_us) == made_up.lines(folder, program)


def test_a_torch_that_fails_and_then_imports(folder):
    """The failure is upstream's own, and the second attempt starts the engine."""
    made_up.write(
        folder, torch__late="import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\n1 / (sys.tries - 1)\n"
    )
    program = """
        import sys, on, ddp_patches.auto
        try:
            import torch
        except ZeroDivisionError:
            print("failed", on.on(), "torch" in sys.modules)
        import torch
        print(on.on())
    """
    assert made_up.lines(folder, program) == ["failed False False", "True"]


GREEDY = """
import sys
from importlib.machinery import PathFinder

class Greedy:
    "Finds everything that lies on the path, before anybody else is asked."
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path)

sys.meta_path.insert(0, Greedy())
"""

# A module whose own imports come past it, being of modules that are built in.
ASKS = """
import sys
new = [name for name in sys.builtin_module_names if name not in sys.modules][:2]
for name in new:
    __import__(name)
"""


@pytest.mark.parametrize("comes", ["after", "before"])
def test_torch_imported_past_us_by_a_finder_that_is_first(folder, comes):
    """The engine starts after an import in which we hear of another one, and neither is disturbed."""
    made_up.write_files(folder, {"greedy.py": GREEDY, "asks.py": ASKS})
    program = """
        import on
        import %s
        import %s
        import greedy, torch, torch.late
        import asks
        print(on.on(), len(asks.new))
    """ % (("ddp_patches.auto", "greedy") if comes == "after" else ("greedy", "ddp_patches.auto"))
    assert made_up.lines(folder, program) == ["True 2"]


def test_nothing_is_imported_under_the_import_systems_global_lock(folder):
    """It is held while finders are asked. Here one thread holds wrapt's lock and needs the global one next;
    the other one learns in a finder that torch is there. Both must end."""
    made_up.write_files(folder, {"greedy.py": GREEDY, "asks.py": ASKS})
    program = """
        import threading, time, on, ddp_patches.auto
        import greedy, torch
        import importlib.machinery as machinery

        inside, asked = threading.Event(), threading.Event()

        class Slow(machinery.SourceFileLoader):
            def exec_module(self, module):
                inside.set()
                asked.wait(5)
                time.sleep(0.5)
                super().exec_module(module)

        real = greedy.Greedy.find_spec
        def find_spec(self, name, path=None, target=None):
            spec = real(self, name, path)
            if name == "wrapt":
                spec.loader = Slow(spec.loader.name, spec.loader.path)
            return spec
        greedy.Greedy.find_spec = find_spec

        other = threading.Thread(target=__import__, args=("wrapt",), daemon=True)
        other.start()
        inside.wait(5)
        threading.Timer(0.1, asked.set).start()
        import asks
        other.join()
        print(on.on())
    """
    assert made_up.lines(folder, program, limit_s=20) == ["True"]


def test_a_finder_of_the_old_kind_keeps_its_turn(folder):
    """Before Python 3.12 a finder may have `find_module` alone; what it finds must not be found elsewhere."""
    program = """
        import sys, types, on, ddp_patches.auto
        class Old:
            def find_module(self, name, path=None):
                return self if name == "torch" else None
            def load_module(self, name):
                module = sys.modules[name] = types.ModuleType(name)
                module.old = True
                return module
        sys.meta_path.insert(1, Old())
        import torch
        import json.tool
        print(hasattr(torch, "old"), on.on())
    """
    assert made_up.lines(folder, program) == ["%s True" % (sys.version_info < (3, 12))]


def test_many_threads_import_torch_and_others_at_once(folder):
    made_up.write(folder, torch__late="import time; time.sleep(0.2)\nimport json.tool\n")
    program = """
        import threading, on, ddp_patches.auto
        names = ["torch", "torch.late", "framework.user", "xml.dom.minidom", "email.mime.text", "torch"] * 3
        errors = []
        def load(name):
            try:
                __import__(name)
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=load, args=(name,), daemon=True) for name in names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(errors, on.on())
    """
    assert made_up.lines(folder, program, limit_s=20) == ["[] True"]


@pytest.mark.parametrize("entry", ["None", "object()"])
def test_an_entry_named_torch_that_is_no_module(folder, entry):
    """None is Python's own way to forbid an import; documentation builds put in objects of their own."""
    program = (
        """
        import sys, on
        sys.modules["torch"] = %s
        import ddp_patches.auto, json.tool
        try:
            import torch
        except ImportError as error:
            print(on.on(), type(error).__name__)
        else:
            print(torch is sys.modules["torch"])
    """
        % entry
    )
    assert made_up.lines(folder, program) == ["False ModuleNotFoundError" if entry == "None" else "True"]


def test_a_lazy_torch_is_not_loaded_by_us(folder):
    """Promise 7: a placeholder in sys.modules costs nothing until somebody uses it."""
    program = """
        import importlib.util, sys, on
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        torch = importlib.util.module_from_spec(spec)
        sys.modules["torch"] = torch
        spec.loader.exec_module(torch)
        import ddp_patches.auto, json.tool
        print(on.on(), "wrapt" in sys.modules, "torch.version" in sys.modules)
        torch.__version__
        import email.mime.text
        print(on.on())
    """
    assert made_up.lines(folder, program) == ["False False False", "True"]


def test_start_is_idempotent_and_stop_takes_everything_back(folder):
    program = """
        import sys, on
        before = list(sys.meta_path)
        from ddp_patches import _finder
        for _ in range(3):
            _finder.start()
        print(len(sys.meta_path) - len(before), sys.meta_path[1:] == before)
        _finder.stop()
        print(sys.meta_path == before)
        import torch, json.tool
        print(on.on())
        _finder.start()
        print(on.on(), sys.meta_path[1:] == before)
    """
    assert made_up.lines(folder, program) == ["1 True", "True", "False", "True True"]


def test_leaving_does_not_make_an_import_in_another_thread_skip_a_finder(folder):
    """That thread goes through the list of finders and is just before the one for built-in modules."""
    program = """
        import sys, threading
        from ddp_patches import _finder
        inside, left = threading.Event(), threading.Event()
        class Slow:
            def find_spec(self, name, path=None, target=None):
                if threading.current_thread() is thread:
                    inside.set()
                    left.wait(10)
        sys.meta_path.insert(sys.meta_path.index(sys.__loader__), Slow())
        _finder.start()
        new = [name for name in sys.builtin_module_names if name not in sys.modules][0]
        thread = threading.Thread(target=__import__, args=(new,))
        thread.start()
        inside.wait(10)
        _finder.stop()
        left.set()
        thread.join()
        print(new in sys.modules)
    """
    assert made_up.lines(folder, program) == ["True"]


@pytest.mark.parametrize("word", ["0", "off", "False", " no "])
def test_switched_off_nothing_of_ours_runs(folder, word):
    """Promise 13, for every door."""
    program = """
        import os, sys, on
        before = dict(os.environ), list(sys.meta_path)
        import ddp_patches.auto, torch
        ddp_patches.enable(timeout="4h")
        print(on.on(), before == (dict(os.environ), list(sys.meta_path)), "wrapt" in sys.modules)
    """
    assert made_up.lines(folder, program, DDP_PATCHES=word) == ["False True False"]


def test_disable_while_torch_is_being_imported(folder):
    made_up.write(folder, torch__late="import ddp_patches; ddp_patches.disable()\n")
    program = """
        import on, ddp_patches.auto
        import torch, json.tool
        print(on.on())
    """
    assert made_up.lines(folder, program) == ["False"]


def test_enable_while_torch_is_being_imported(folder):
    made_up.write(folder, torch__late="import ddp_patches; ddp_patches.enable(); import on; print(on.on())\n")
    assert made_up.lines(folder, "import torch, on; print(on.on())") == ["False", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_waits_for_torch_by_itself(folder):
    program = """
        import os, on, ddp_patches.auto
        child = os.fork()
        if child == 0:
            import torch
            os._exit(0 if on.on() else 1)
        print(os.waitpid(child, 0)[1], on.on())
        import torch
        print(on.on())
    """
    assert made_up.lines(folder, program) == ["0 False", "True"]


def test_reloading_torch_does_nothing_to_the_engine(folder):
    program = """
        import importlib, on, ddp_patches.auto, torch
        importlib.reload(torch)
        print(on.on(), torch.__version__)
    """
    assert made_up.lines(folder, program) == ["True 2.99.0"]


@pytest.mark.parametrize("broken", ["wrapt", "packaging"])
def test_a_broken_dependency_costs_one_line_and_no_training(folder, broken):
    """Said once for a job: not by its children, nor by the ranks above 0."""
    made_up.write_files(folder, {broken + ".py": "raise ImportError('half installed')"})
    program = """
        import subprocess, sys, on, ddp_patches.auto
        import torch
        print(on.on(), flush=True)
        subprocess.run([sys.executable, "-c", "import on, torch; print(on.on())"], check=True)
    """
    finished = made_up.run(folder, program)
    assert (finished.code, finished.out) == (0, "False\nFalse\n"), finished.err
    assert finished.err.count("\n") == 1
    assert "nothing is patched: ImportError('half installed'" in finished.err
    assert made_up.run(folder, program, RANK="3").err == ""


def test_no_standard_error_is_no_reason_to_fail(folder):
    made_up.write_files(folder, {"wrapt.py": "raise ImportError('half installed')"})
    program = "import sys; sys.stderr = None; import ddp_patches.auto, torch; print(torch.__version__)"
    assert made_up.lines(folder, program, DDP_PATCHES_TRACE="1")[-1] == "2.99.0"
