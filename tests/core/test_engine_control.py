"""Turning patches on and off: promises 1, 3, 4 and 5, and the setting `strict`.

Programs in a Python of their own, with the made-up torch and framework of `support/made_up.py`.
"""

from __future__ import annotations

import itertools
import os

import pytest

from support import made_up

SNAPSHOT = """
import sys

def take():
    "Every module's dict but ours, by identity of its values."
    return {
        name: {key: id(value) for key, value in vars(module).items()}
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] not in ("ddp_patches", "__main__")
    }

def differences(before, after):
    "What differs in the modules that are in both."
    found = []
    for name in before.keys() & after.keys():
        for key in sorted(before[name].keys() | after[name].keys()):
            if before[name].get(key) != after[name].get(key):
                found.append("%s.%s" % (name, key))
    return sorted(found)
"""


@pytest.fixture
def folder(tmp_path):
    made_up.write_files(tmp_path, {"snapshot.py": SNAPSHOT})
    return made_up.write(tmp_path)


# Twelve: the two calls of enable() are not told apart. Disabling first, or twice on, is allowed too.
ORDERS = sorted(set(itertools.permutations(["import", "enable", "disable", "enable"])))


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_orders_of_import_enable_disable_enable(folder, order):
    program = """
        import ddp_patches, framework_patches
        for step in %r:
            if step == "import":
                from framework.user import work, labour
                import framework.work, framework.user
            else:
                getattr(ddp_patches, step)()
        def done():
            import framework.work
            same = labour is framework.user.work is framework.work.work
            return work(1), same, framework.work.Worker().work(1)
        print(done(), framework_patches.states())
        ddp_patches.disable()
        print(done(), framework_patches.states())
    """
    upstream = "('upstream did 1', True, \"upstream's worker did 1\") []"
    patched = "('patched, upstream did 1', True, \"patched, upstream's worker did 1\") ['applied', 'applied']"
    last = [step for step in order if step != "import"][-1]
    assert made_up.lines(folder, program % (order,)) == [patched if last == "enable" else upstream, upstream]


def test_after_disable_every_module_dict_is_what_it_was(folder):
    """By identity, class bodies included; and modules imported meanwhile hold upstream's function."""
    program = """
        import ddp_patches, framework_patches, snapshot, torch, framework.user
        ddp_patches.enable()  # once before, for what modules remember when they are first used
        ddp_patches.disable()
        before = snapshot.take()
        body = dict(vars(framework.work.Worker))
        for _ in range(2):
            ddp_patches.enable()
            print(snapshot.differences(before, snapshot.take()))
            exec("from framework.work import work as late")
            framework.later = type(snapshot)("later")
            import sys; sys.modules["later"] = framework.later
            framework.later.task = late
            ddp_patches.disable()
            del framework.later
            print(snapshot.differences(before, snapshot.take()), body == dict(vars(framework.work.Worker)))
            print(late is framework.work.work is sys.modules["later"].task)
    """
    changed = "['framework.user.labour', 'framework.user.work', 'framework.work.work']"
    assert made_up.lines(folder, program) == [changed, "[] True", "True"] * 2


def test_two_patches_of_one_target(folder):
    """As torch.process_group_timeout and torch.teardown are of init_process_group."""
    second = """
        from ddp_patches import patch
        SECOND = patch("framework.second", package="framework", summary="")
        @SECOND.replaces("framework.work:work", parameters=("amount",))
        def work(original):
            return lambda amount: "second, " + original(amount)
    """
    made_up.write_files(folder, {"second_patches.py": second})
    program = """
        import ddp_patches, framework_patches, second_patches, framework.user
        for skip in ("", "framework.work", "", "framework.second", "framework.*", ""):
            ddp_patches.enable(skip=skip)
            print(framework.user.work(1), framework_patches.states())
        ddp_patches.disable()
        print(framework.user.labour(1), framework.user.work.__dict__)
    """
    on, off = "applied", "skipped"
    assert made_up.lines(folder, program) == [
        "second, patched, upstream did 1 %s" % [on, on, on],
        "second, upstream did 1 %s" % [off, off, on],
        "second, patched, upstream did 1 %s" % [on, on, on],
        "patched, upstream did 1 %s" % [on, on, off],
        "upstream did 1 %s" % [off, off, off],
        "second, patched, upstream did 1 %s" % [on, on, on],
        "upstream did 1 {}",
    ]


def test_a_second_start_changes_nothing_and_takes_patches_declared_since(folder):
    """Doors may be used together (bootstrap, `auto`, custom_imports); what runs must not be exchanged."""
    program = """
        import ddp_patches.auto, torch, framework.user
        ddp_patches.enable()
        import framework_patches
        print(framework_patches.states())
        ddp_patches.enable()
        first = [framework.user.work]  # not by a name of this module: those are swept too
        print(framework_patches.states())
        ddp_patches._finder.start()
        ddp_patches.enable()
        print(first[0] is framework.user.work)
        ddp_patches.enable(timeout="4h")
        print(first[0] is framework.user.work, framework_patches.states())
    """
    both = "['applied', 'applied']"
    assert made_up.lines(folder, program) == ["[]", both, "True", "False " + both]


def test_disable_from_inside_a_patched_call(folder):
    text = made_up.PACKAGES["framework_patches.py"].replace(
        'return "patched, "', 'import ddp_patches; ddp_patches.disable(); return "patched, "', 1
    )
    made_up.write_files(folder, {"framework_patches.py": text})
    program = """
        import ddp_patches.auto, framework_patches, framework.user
        print(framework.user.work(1))
        print(framework.user.work(2), framework_patches.states())
    """
    assert made_up.lines(folder, program) == ["patched, upstream did 1", "upstream did 2 []"]


def test_a_target_that_another_thread_patches_at_the_same_moment(folder):
    """What is built by then wraps a function that is no longer there: it is built again over the new one."""
    second = """
        from ddp_patches import patch
        from ddp_patches.engine import control
        SECOND = patch("framework.second", package="framework", summary="")
        @SECOND.replaces("framework.work:work", parameters=("amount",))
        def work(original):
            import framework_patches
            target = str(framework_patches.PATCH.variants[0].target)
            control._apply(framework_patches.PATCH, target, "framework.work:work")
            return lambda amount: "second, " + original(amount)
    """
    made_up.write_files(folder, {"second_patches.py": second})
    program = """
        import second_patches, framework_patches, ddp_patches, framework.user
        ddp_patches.enable()
        print(framework.user.work(1), framework_patches.states())
        ddp_patches.disable()
        print(framework.user.work(1), framework.work.work.__dict__)
    """
    assert made_up.lines(folder, program) == [
        "second, patched, upstream did 1 ['applied', 'applied', 'applied']",
        "upstream did 1 {}",
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forking_while_another_thread_uses_the_ledger(folder):
    """A loader's workers are forked beside threads of ours. A lock held at that moment would stay held."""
    program = """
        import os, threading, ddp_patches.auto, framework_patches, framework.user
        from ddp_patches.engine import ledger
        done = False
        def read():
            while not done:
                ledger.rows()
        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(100):
            child = os.fork()
            if child == 0:
                ledger.record("framework.work", "none")
                os._exit(len(framework_patches.rows()))
            assert os.waitpid(child, 0)[1] == 2 << 8
        done = True
        thread.join()
        print("done")
    """
    # From 3.12 on Python itself warns of what this test does.
    assert made_up.lines(folder, program, limit_s=30, PYTHONWARNINGS="ignore") == ["done"]


def test_what_the_user_wrapped_around_ours_stays(folder):
    program = """
        import functools, ddp_patches, framework_patches, framework.user
        ddp_patches.enable()
        def wrapper_of(ours):
            return functools.wraps(ours)(lambda amount: "wrapped, " + ours(amount))
        framework.work.work = wrapper_of(framework.work.work)
        from ddp_patches.engine import control
        control.look_for_losses()
        print(framework_patches.rows()[0].reason)
        ddp_patches.disable()
        print(framework.work.work(1), framework.user.work(1), sep="; ")
    """
    reason = "not run by our tests on framework 1.2.0; the signature fits"
    assert made_up.lines(folder, program) == [reason, "wrapped, patched, upstream did 1; upstream did 1"]


def test_a_reload_is_seen_and_a_new_start_patches_again(folder):
    """Promise 3. No hook reaches a reload: wrapt's are spent, and the module's spec says nothing."""
    program = """
        import importlib, ddp_patches, framework_patches, framework.work
        from ddp_patches.engine import control
        ddp_patches.enable()
        importlib.reload(framework.work)
        control.look_for_losses()
        print(framework.work.work(1), [row.reason for row in framework_patches.rows()])
        ddp_patches.disable()
        ddp_patches.enable()
        print(framework.work.work(1), framework.work.Worker().work(1), framework_patches.states())
        ddp_patches.disable()
        print(framework.work.work(1), framework.work.Worker().work(1))
    """
    lost = "framework.work:%s has been replaced since, by a reload or by other code"
    assert made_up.lines(folder, program) == [
        "upstream did 1 %s" % [lost % "work", lost % "Worker.work"],
        "patched, upstream did 1 patched, upstream's worker did 1 ['applied', 'applied']",
        "upstream did 1 upstream's worker did 1",
    ]


CHANGED = "def work(quantity): return 'upstream did %s' % quantity\nclass Worker: work = property(work)\n"


def test_a_changed_target_is_left_alone_with_the_reason(folder):
    made_up.write(folder, framework__work=CHANGED)
    program = """
        import ddp_patches, framework_patches, torch, framework.work
        before = dict(vars(framework.work))
        ddp_patches.enable()
        print(before == dict(vars(framework.work)))
        for row in framework_patches.rows():
            print(row.state, row.verdict, row.reason, sep="; ")
    """
    assert made_up.lines(folder, program) == [
        "True",
        "skipped; changed; its signature (quantity) has no amount",
        "skipped; changed; it is no plain function but of type property",
    ]


def test_a_target_in_its_older_home(folder):
    made_up.write(folder, framework__work="", framework__older_work=made_up.PACKAGES["framework/work.py"])
    program = """
        import ddp_patches.auto, framework_patches, framework.work, framework.older_work
        print(framework.older_work.work(1))
        for row in framework_patches.rows():
            print(row.target, row.state, row.verdict, row.reason, sep="; ")
    """
    fits = "applied; compatible; not run by our tests on framework 1.2.0; the signature fits"
    assert made_up.lines(folder, program) == [
        "patched, upstream did 1",
        "framework.older_work:work; " + fits,
        "framework.work:Worker.work; skipped; absent; framework.work has no class Worker",
    ]


def test_strict_raises_what_cannot_be_applied_and_leaves_nothing_behind(folder):
    made_up.write(folder, framework__work=CHANGED)
    program = """
        import os, ddp_patches, framework_patches, torch, framework.work
        before = dict(os.environ)
        try:
            ddp_patches.enable(strict=True, timeout="4h")
        except Exception as error:
            print(type(error).__name__, error)
        print(framework_patches.states(), before == dict(os.environ), ddp_patches.settings.current().timeout)
        ddp_patches.enable(timeout="4h")
        print(framework_patches.states())
    """
    assert made_up.lines(folder, program) == [
        "StrictError framework.work cannot be applied to framework.work:work: "
        "its signature (quantity) has no amount",
        "[] True 7200.0",
        "['skipped', 'skipped']",
    ]


@pytest.mark.parametrize("first", ["torch", "ddp_patches"])
def test_strict_reaches_the_users_import(folder, first):
    """Where torch or the framework is imported only later, that import raises."""
    made_up.write(folder, framework__work=CHANGED)
    program = """
        import ddp_patches, framework_patches, %s
        ddp_patches.enable(strict=True)
        try:
            import framework.work, torch
        except RuntimeError as error:
            print(type(error).__name__)
    """
    assert made_up.lines(folder, program % first) == ["StrictError"]


def test_a_strict_bad_value_in_the_environment_reaches_the_import_of_torch(folder):
    program = """
        import ddp_patches.auto
        try:
            import torch
        except ValueError as error:
            print(type(error).__name__, error)
    """
    variables = {"DDP_PATCHES_STRICT": "1", "DDP_PATCHES_TIMEOUT": "soon"}
    (line,) = made_up.lines(folder, program, **variables)
    assert line.startswith("SettingError DDP_PATCHES_TIMEOUT='soon' is not a duration")


def test_what_is_wrong_with_the_settings_is_said_once_for_a_job(folder):
    """By one process: not again by its children, nor by the other ranks; an unknown id in skip among it."""
    program = """
        import subprocess, sys, ddp_patches.auto
        import torch
        ddp_patches.enable()
        subprocess.run([sys.executable, "-c", "import ddp_patches.auto, torch"], check=True)
    """
    variables = {
        "DDP_PATCHES_TIMEOUT": "soon",
        "DDP_PATCHES_TIMOUT": "2h",
        "DDP_PATCHES_SKIP": "torch.barier_device_ids,torch.*",
    }
    for rank in ({}, {"RANK": "0"}, {"RANK": "-1"}, {"SLURM_PROCID": "0"}):
        finished = made_up.run(folder, program, **variables, **rank)
        lines = [line for line in finished.err.splitlines() if line]
        assert finished.code == 0 and len(lines) == 3, finished.err
        for line, text in zip(
            lines,
            [
                "DDP_PATCHES_TIMEOUT='soon' is not a duration",
                "DDP_PATCHES_TIMOUT is not a setting; did you mean DDP_PATCHES_TIMEOUT?",
                "skip names no patch: 'torch.barier_device_ids'; did you mean torch.barrier_device_ids?",
            ],
        ):
            assert text in line
    for rank in ({"RANK": "1"}, {"SLURM_PROCID": "5"}, {"RANK": "2", "SLURM_PROCID": "0"}):
        assert made_up.run(folder, program, **variables, **rank).err == ""


def test_an_earlier_enable_is_over(folder):
    """Its keywords must not come back through the variables that it set for child processes."""
    program = """
        import os, ddp_patches
        from ddp_patches import settings
        before = dict(os.environ)
        ddp_patches.enable(timeout="4h")
        print(settings.current().timeout, os.environ["DDP_PATCHES_TIMEOUT"])
        ddp_patches.enable(zero_first_timeout="1h")
        print(settings.current().timeout, settings.active().sources["timeout"])
        print("DDP_PATCHES_TIMEOUT" in os.environ)
        ddp_patches.disable()
        print(before == dict(os.environ))
    """
    assert made_up.lines(folder, program) == ["14400.0 4h", "7200.0 default", "False", "True"]


def test_propagate_as_keyword_wins_over_the_variable(folder):
    program = """
        import os, ddp_patches
        for propagate in (True, False):
            ddp_patches.enable(propagate=propagate)
            print("DDP_PATCHES_ARMED" in os.environ)
    """
    assert made_up.lines(folder, program, DDP_PATCHES_PROPAGATE="0") == ["True", "False"]


def test_disable_in_a_child_lets_its_own_children_alone(folder):
    """Also where a parent of the child armed them all. Its settings are there for a new start."""
    child = """
        import subprocess, sys
        def ask():
            waiting = "import sys; print(any(hasattr(each, 'waits_for_torch') for each in sys.meta_path))"
            subprocess.run([sys.executable, "-c", waiting])
        ask()
        import ddp_patches
        ddp_patches.disable()
        ask()
        ddp_patches.enable()
        ask()
        print(ddp_patches.settings.current().timeout, ddp_patches.settings.active().sources["timeout"])
    """
    made_up.write_files(folder, {"child.py": child})
    program = """
        import subprocess, sys, ddp_patches
        ddp_patches.enable(timeout="4h")
        subprocess.run([sys.executable, "-u", "child.py"], check=True)
    """
    assert made_up.lines(folder, program) == ["True", "False", "True", "14400.0 keyword"]


def test_a_failure_of_ours_at_call_time(folder):
    """Promise 1: the original once, the failure in the ledger with its traceback, one line; strict raises."""
    text = made_up.PACKAGES["framework_patches.py"].replace(
        'return "patched, " + original(amount)',
        'ledger.attempt("framework.work", lambda: {}["ours"], None); return original(amount)',
    )
    text = text.replace("import patch", "import patch; from ddp_patches.engine import ledger", 1)
    made_up.write_files(folder, {"framework_patches.py": text})
    program = """
        import ddp_patches.auto, framework_patches, framework.user
        print(framework.user.work(1), framework.user.work(2))
        row = framework_patches.rows()[0]
        print(row.state, row.call_failures, row.reason, row.traceback.splitlines()[-1], sep="; ")
    """
    finished = made_up.run(folder, program)
    assert finished.out.splitlines() == [
        "upstream did 1 upstream did 2",
        "applied; 2; failed when called, upstream's code ran instead: KeyError: 'ours'; KeyError: 'ours'",
    ], finished.err
    assert finished.err.count("framework.work failed when called") == 1
    strict = made_up.run(folder, program, DDP_PATCHES_STRICT="1")
    assert strict.code == 1 and strict.err.rstrip().endswith("KeyError: 'ours'")
