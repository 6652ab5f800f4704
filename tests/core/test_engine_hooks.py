"""When a target is patched, and that a hook never harms an import (promise 1; issue: "the engine").

Programs in a Python of their own, with the made-up torch and framework of `support/made_up.py`.
"""

from __future__ import annotations

import pytest

from support import made_up


@pytest.fixture
def folder(tmp_path):
    return made_up.write(tmp_path)


def test_a_target_that_imports_torch_is_patched_when_it_has_finished(folder):
    """The usual case: torch is imported by the framework, whose modules are half imported at that moment."""
    program = """
        import ddp_patches.auto, framework_patches
        from framework.user import work, labour
        import framework.work
        print(work(1), labour is work is framework.work.work, framework.work.Worker().work(2), sep="; ")
        print([(row.target, row.state, row.holders) for row in framework_patches.rows()])
    """
    assert made_up.lines(folder, program) == [
        "patched, upstream did 1; True; patched, upstream's worker did 2",
        "[('framework.work:work', 'applied', 1), ('framework.work:Worker.work', 'applied', 1)]",
    ]


def test_enable_from_inside_the_targets_import(folder):
    """At that moment the module has neither function: they are patched when it is complete."""
    text = made_up.PACKAGES["framework/work.py"]
    made_up.write(folder, framework__work="\n        import ddp_patches; ddp_patches.enable()\n" + text)
    program = """
        import framework_patches, framework.user
        print(framework.user.work(1), framework_patches.states())
    """
    assert made_up.lines(folder, program) == ["patched, upstream did 1 ['applied', 'applied']"]


def test_circular_imports(folder):
    """`user` takes the function while its module is still running, and is reached by the sweep."""
    text = made_up.PACKAGES["framework/work.py"] + "\n        import framework.user\n"
    made_up.write(folder, framework__work=text)
    program = """
        import ddp_patches.auto, framework_patches, framework.work
        print(framework.user.work(1), framework.user.labour is framework.work.work)
    """
    assert made_up.lines(folder, program) == ["patched, upstream did 1 True"]


def test_a_target_that_fails_and_then_imports(folder):
    text = "import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\n1 / (sys.tries - 1)\n"
    text += "def work(amount): return 'upstream did %s' % amount\n"
    made_up.write(folder, framework__work=text)
    program = """
        import ddp_patches.auto, torch, framework_patches
        ddp_patches.enable()
        for _ in range(2):
            try:
                import framework.work
                print(framework.work.work(1))
            except ZeroDivisionError:
                print("failed", framework_patches.states())
        print([(row.state, row.reason) for row in framework_patches.rows()][1])
    """
    assert made_up.lines(folder, program) == [
        "failed ['waiting', 'waiting']",
        "patched, upstream did 1",
        "('skipped', 'framework.work has no class Worker')",
    ]


def test_another_tools_hook_fails_the_import_after_the_targets_code_has_run(folder):
    """wrapt forgets our hook then. The second import is patched all the same, or, with a wrapt before 1.15
    which takes no second hook, the ledger says that it still waits."""
    program = """
        import ddp_patches.auto, framework_patches, torch, wrapt
        def fail(module):
            raise OSError("of the other tool")
        wrapt.register_post_import_hook(fail, "framework.work")
        try:
            import framework.work
        except OSError as error:
            print(error)
        import framework.work
        old = tuple(map(int, wrapt.__version__.split(".")[:2])) < (1, 15)
        print(framework.work.work(1) == ("upstream did 1" if old else "patched, upstream did 1"))
        print(set(framework_patches.states()) == {"waiting" if old else "applied"})
    """
    assert made_up.lines(folder, program) == ["of the other tool", "True", "True"]


BREAKAGES = {
    "the builder": ("def work(original):", "def work(original):\n    raise LookupError('ours')"),
    "the condition": ('summary="works harder"', 'summary="", condition=lambda: {}["ours"]'),
    "what is built": ("return replacement", "return None"),
}


@pytest.mark.parametrize("broken", BREAKAGES)
def test_a_patch_that_fails_leaves_upstream_alone_and_its_traceback_in_the_ledger(folder, broken):
    before, after = BREAKAGES[broken]
    text = made_up.PACKAGES["framework_patches.py"].replace("        ", "", 1).replace("\n        ", "\n")
    made_up.write_files(folder, {"framework_patches.py": text.replace(before, after, 1)})
    program = """
        import ddp_patches.auto, framework_patches
        import framework.user
        print(framework.user.work(1), framework.user.work.__module__, framework.user.work.__dict__)
        row = framework_patches.rows()[0]
        print(row.state, row.traceback.splitlines()[0])
        ddp_patches.disable()
        print(framework.user.work(1))
    """
    finished = made_up.run(folder, program)
    assert finished.out.splitlines() == [
        "upstream did 1 framework.work {}",
        "failed Traceback (most recent call last):",
        "upstream did 1",
    ], finished.err
    lines = finished.err.splitlines()
    assert len(lines) == (2 if broken == "the condition" else 1), finished.err  # one for each target
    assert "framework.work is not applied, framework.work:work stays as upstream wrote it" in lines[0]


@pytest.mark.parametrize("first", ["", "torch, "], ids=["torch by the framework", "torch first"])
def test_a_framework_whose_version_cannot_be_asked(folder, first):
    """It is one without a version then, whose targets get their verdict all the same."""
    made_up.write(folder, framework____init__="def __getattr__(name): raise RuntimeError('no ' + name)\n")
    program = """
        import ddp_patches.auto, framework_patches, %sframework.work
        print(framework.work.work(1))
        row = [row for row in ddp_patches.status().patches if row.package == "framework"][0]
        print(row.state, row.reason)
    """
    finished = made_up.run(folder, program % first)
    reason = "not run by our tests on framework of unknown version; the signature fits"
    expected = "patched, upstream did 1\napplied %s\n" % reason
    assert (finished.code, finished.out) == (0, expected), finished.err


def test_a_version_that_is_known_only_at_the_end_of_the_package(folder):
    """mmengine's `__init__` imports its version last. Until then no variant can be chosen."""
    made_up.write(folder, framework____init__="from . import user\n__version__ = '0.9.0'\n")
    text = made_up.PACKAGES["framework_patches.py"].replace(
        'parameters=("amount",))\n        def work(',
        'parameters=("amount",), versions="<1")\n        def work(',
    )
    made_up.write_files(folder, {"framework_patches.py": text})
    program = """
        import ddp_patches.auto, framework_patches
        import framework.user
        print(framework.user.work(1), framework_patches.rows()[0].version)
    """
    assert made_up.lines(folder, program) == ["patched, upstream did 1 0.9.0"]


def test_no_lock_is_held_while_the_code_of_a_patch_runs(folder):
    """Its builder here waits for a thread that imports another target; a lock would let neither go on."""
    text = """
        import sys, threading
        from ddp_patches import patch
        PATCH = patch("framework.work", package="framework", summary="")

        @PATCH.replaces("framework.work:work", parameters=("amount",))
        def work(original):
            thread = threading.Thread(target=__import__, args=("framework.other",), daemon=True)
            thread.start()
            thread.join(10)
            sys.alive = thread.is_alive()
            return lambda amount: "patched"

        @PATCH.replaces("framework.other:other")
        def other(original):
            return lambda: "patched too"
    """
    made_up.write(folder, framework__other="def other(): pass\n")
    made_up.write_files(folder, {"framework_patches.py": text})
    program = """
        import sys, ddp_patches.auto, framework_patches, torch
        import framework.work, framework.other
        print(sys.alive, framework.work.work(1), framework.other.other())
    """
    assert made_up.lines(folder, program) == ["False patched patched too"]


def test_enable_and_disable_while_others_import(folder):
    """Short, for crashes and deadlocks; at the end everything is as the last call wanted it."""
    program = """
        import sys, threading, ddp_patches, framework_patches
        def load(name="framework.user"):
            for _ in range(60):
                __import__(name)
                del sys.modules[name]
        def switch():
            for _ in range(30):
                ddp_patches.enable()
                ddp_patches.disable()
        errors = []
        def noting(function):
            def run():
                try:
                    function()
                except BaseException as error:
                    errors.append(repr(error))
            return threading.Thread(target=run, daemon=True)
        threads = [noting(f) for f in (load, lambda: load('json.tool'), switch, switch)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import framework.work
        print(errors, framework.work.work(1))
        ddp_patches.enable()
        print(framework.work.work(1), framework_patches.states())
    """
    assert made_up.lines(folder, program) == [
        "[] upstream did 1",
        "patched, upstream did 1 ['applied', 'applied']",
    ]
