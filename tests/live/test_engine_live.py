"""The engine over the whole catalogue, with a real torch and the newest Ultralytics: promises 3 to 6."""

from __future__ import annotations

import sys

import pytest

from ddp_patches.engine.versions import FITTING
from support import made_up, ranks, stacks
from support.releases import NEWEST_ULTRALYTICS
from support.stacks import STACKS

# Holds by name what the patches replace, as frameworks and users' scripts do.
HOLDER = """
import importlib, os
for place in os.environ["HELD"].split():
    module, _, name = place.partition(":")
    globals()[name] = getattr(importlib.import_module(module), name)
"""

OBSERVER = """
import importlib, os, sys, types

def import_all():
    import torch, torch.distributed.launcher
    for name in os.environ["IMPORTED"].split():
        importlib.import_module(name)
    import holder

NOT_LOOKED_AT = ("ddp_patches", "wrapt", "__main__", "__mp_main__")

def everything():
    "(place, value) of every module's dict and every class in it, but ours and the test's own."
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name.partition(".")[0] not in NOT_LOOKED_AT:
            for key, value in list(types.ModuleType.__getattribute__(module, "__dict__").items()):
                yield name + ":" + key, value
                if type(value) is type and value.__module__ == name:
                    for inner, member in list(vars(value).items()):
                        yield "%s:%s.%s" % (name, key, inner), member

def snapshot():
    return dict(everything())  # the values themselves: an id may be used again

def differences(before, after):
    return sorted(place for place in before.keys() & after.keys() if before[place] is not after[place])

def ours():
    return sorted(place for place, value in everything()
                  if isinstance(value, types.FunctionType) and "__ddp_patches__" in vars(value))

def in_place():
    "{patch id: its replacements}, of all patches of the packages that are imported."
    from ddp_patches.engine import catalogue, control
    patches = [patch for patch in catalogue.load() if patch.package in sys.modules]
    return {patch.id: control.replacements(patch.id) for patch in patches}

"""

ULTRALYTICS = "ultralytics/" + NEWEST_ULTRALYTICS


@pytest.fixture
def run(processes, tmp_path):
    """Runs a program against a stack (the newest Ultralytics); what it prints as JSON is the answer."""

    def start(program, *arguments, limit=200, stack=ULTRALYTICS, **variables):
        made_up.write_files(tmp_path, {"holder.py": HOLDER, "observer.py": OBSERVER})
        variables.update(IMPORTED=STACKS[stack].modules, HELD=STACKS[stack].held)
        environment = stacks.environment_of(tmp_path, stack, **variables)
        path = ranks.script(tmp_path, program)
        return processes.run([sys.executable, path, *arguments], environment, limit).check()

    return start


# The import at every place among enable, disable and enable; and two that end off. The remaining ones, which
# begin with disable() or enable twice, are run over a made-up framework in tests/core.
ORDERS = [
    "import enable disable enable",
    "enable import disable enable",
    "enable disable import enable",
    "enable disable enable import",
    "import enable enable disable",
    "enable enable disable import",
]


# Every day OpenMMLab has one each: the engine does not know one framework from another.
EVERYDAY = {ULTRALYTICS: ORDERS, "mmdet/3.3.0": ORDERS[:1], "mmdet3d/1.0.0rc6": ORDERS[3:4]}
EVERY_ORDER = [
    pytest.param(name, order, marks=[] if order in EVERYDAY.get(name, []) else [pytest.mark.matrix])
    for name in STACKS
    for order in ORDERS
]


@pytest.mark.parametrize(("stack", "order"), EVERY_ORDER)
def test_orders_of_import_enable_disable_enable_for_every_patch(run, stack, order):
    """On means: every patch is applied, every holder has it, nothing holds upstream's. Off means: nothing of
    ours is anywhere, and what was imported while off is by identity what it was."""
    program = """
        import json, sys, ddp_patches, observer
        on, before = False, None
        for step in sys.argv[1:]:
            if step == "import":
                observer.import_all()
                before = None if on else observer.snapshot()
            else:
                getattr(ddp_patches, step)()
                on = step == "enable"
        answer = {"on": on}
        if on:
            placed = observer.in_place()
            answer["placed"] = [id for id, replacements in placed.items() if replacements]
            shown = ("id", "package", "state", "verdict", "reason")
            answer["rows"] = [[getattr(row, n) for n in shown] for row in ddp_patches.status().patches]
            targets = [r.original for replacements in placed.values() for r in replacements]
            inner = {id(r.function) for replacements in placed.values() for r in replacements}
            answer["left"] = [
                place for place, value in observer.everything()
                if any(value is original for original in targets) and id(value) not in inner
            ]
            answer["ours"] = observer.ours()
            del targets, placed
        ddp_patches.disable()
        answer["ours after"] = observer.ours()
        answer["changed"] = observer.differences(before, observer.snapshot()) if before is not None else []
        print(json.dumps(answer))
    """
    answer = run(program, *order.split(), stack=stack).answer
    assert answer["on"] == (order in ORDERS[:4])
    assert (answer["ours after"], answer["changed"]) == ([], [])
    if answer["on"]:
        assert answer["left"] == []
        applied = {id for id, _, state, *_ in answer["rows"] if state == "applied"}
        assert set(answer["placed"]) == applied
        assert_reasons(STACKS[stack], answer["rows"])
        held = {place.partition(":")[2] for place in STACKS[stack].held.split()}
        assert held <= {place.partition(":")[2] for place in answer["ours"] if place.startswith("holder:")}


def assert_reasons(stack, rows):
    """Every patch is applied as one of a release that is known, or says why not: as `status` shows it."""
    absent = set()
    for id, package, state, verdict, reason in rows:
        if package not in stack.packages:
            assert (state, reason) == ("waiting", package + " is not imported yet"), id
        elif state == "applied":
            assert verdict in FITTING, (id, verdict)
        else:
            assert reason.startswith(stack.absent.get(id, "(it must be applied)")), (id, state, reason)
            absent.add(id)
    assert absent == stack.absent.keys()


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.matrix), "forkserver"])
@pytest.mark.release(name=ULTRALYTICS)
def test_every_replaced_callable_survives_pickling(run, method):
    """By reference: a child uses its own, which is ours where the child is armed and upstream's elsewhere."""
    program = """
        import json, multiprocessing, pickle, sys
        import cloudpickle, ddp_patches, observer
        from torch import multiprocessing as torch_multiprocessing

        def marks(functions):
            return [getattr(function, "__ddp_patches__", None) for function in functions]

        def child(pickled, queue):
            queue.put(marks(pickle.loads(pickled)))

        def spawned(rank, functions, queue):
            queue.put(marks(functions))

        if __name__ == "__main__":
            observer.import_all()
            answer = {}
            for propagate in ("on", "off"):
                ddp_patches.enable(propagate=propagate)
                functions = []
                for replacements in observer.in_place().values():
                    for replacement in replacements:
                        found = sys.modules[replacement.place.partition(":")[0]]
                        for name in replacement.place.partition(":")[2].split("."):
                            found = getattr(found, name)
                        functions.append(found)
                texts = pickle.dumps(functions), cloudpickle.dumps(functions)
                answer["same"] = all(pickle.loads(text) == functions for text in texts)
                answer["ours"] = [b"ddp_patches" in text for text in texts]
                answer["here"] = marks(functions)
                context = multiprocessing.get_context(sys.argv[1])
                queue = context.Queue()
                if sys.argv[1] == "spawn":
                    torch_multiprocessing.spawn(spawned, (functions, queue), nprocs=1)
                else:
                    process = context.Process(target=child, args=(texts[0], queue))
                    process.start()
                    process.join()
                    multiprocessing.forkserver._forkserver._stop()  # the next one gets another environment
                answer[propagate] = queue.get(timeout=30)
            print(json.dumps(answer))
    """
    answer = run(program, method).answer
    assert answer["same"] is True and answer["ours"] == [False, False]
    assert len(answer["here"]) > 5 and None not in answer["here"]
    assert answer["on"] == answer["here"]
    assert answer["off"] == [None] * len(answer["here"])


@pytest.mark.release(name=ULTRALYTICS)
def test_a_compiled_function_may_call_a_replaced_one(run):
    """Without a break of the graph: torch.compile sees a plain function."""
    program = """
        import json, types, sys
        import ddp_patches, torch
        from ddp_patches import patch

        framework = sys.modules["framework"] = types.ModuleType("framework")
        exec("def scale(x): return x * 2", framework.__dict__)

        PATCH = patch("framework.scale", package="framework", summary="")
        @PATCH.replaces("framework:scale", parameters=("x",))
        def scale(original):
            def replacement(x):
                return original(x) + 1
            return replacement

        def work(x):
            return framework.scale(x).sum()

        compiled = torch.compile(work, backend="eager", fullgraph=True)
        results = [compiled(torch.ones(3)).item()]
        ddp_patches.enable()
        results.append(compiled(torch.ones(3)).item())
        ddp_patches.disable()
        results.append(compiled(torch.ones(3)).item())
        print(json.dumps({"results": results}))
    """
    assert run(program).answer == {"results": [6.0, 9.0, 6.0]}


@pytest.mark.release(name=ULTRALYTICS)
def test_holders_out_of_reach_are_found_among_all_of_torch(run):
    program = """
        import functools, json, torch.distributed as dist, ddp_patches

        def holding(function):
            return lambda: function()

        class Callbacks:
            at_end = dist.barrier

        kept = functools.partial(dist.barrier), holding(dist.barrier), Callbacks
        ddp_patches.enable()
        from ddp_patches.engine import apply, control
        (placed,) = control.replacements("torch.barrier_device_ids")
        print(json.dumps({"found": apply.unreachable_holders([placed])[0]}))
    """
    assert run(program).answer["found"] == [
        "a functools.partial",
        "the class __main__.Callbacks",
        "the closure of __main__.holding.<locals>.<lambda>",
    ]


@pytest.mark.release(name=ULTRALYTICS)
def test_the_specs_of_torch_are_its_own(run):
    """Also where somebody has asked first whether torch is installed, as most libraries do."""
    program = """
        import importlib.util, json, sys
        import ddp_patches.auto
        assert importlib.util.find_spec("torch")
        import torch
        kinds = {
            str(type(module.__spec__)) for name, module in list(sys.modules.items())
            if name.partition(".")[0] == "torch" and getattr(module, "__spec__", None) is not None
        }
        waiting = [name for name, module in list(sys.modules.items())
                   if "_ddp_patches_waiting" in getattr(getattr(module, "__spec__", None), "__dict__", {})]
        from ddp_patches.engine import control
        print(json.dumps({"kinds": sorted(kinds), "waiting": waiting, "on": control.is_enabled()}))
    """
    assert run(program).answer == {"kinds": [str(type(sys.__spec__))], "waiting": [], "on": True}
