"""``generate_ddp_command``: what the launching process does right before it starts the workers.

Workers get the patches and settings through environment variables. Between ``import ddp_patches.auto``
and ``train()`` lie the user's own lines, and ``os.environ["PYTHONPATH"] = "/my/code"`` is a common one:
without this patch the workers then run unpatched, and nobody is told. So the environment is armed again
here, the last place before ``subprocess.run``; what the user wrote there stays.

Upstream's command and file are returned untouched. Nothing of ours is written: upstream has just removed
the run's folder, and would remove it again.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Mapping

from ... import _finder, console, propagation, settings
from ...engine import ledger
from ...engine.patch import patch

ID = "ultralytics.launch"
TARGET = "ultralytics.utils.dist|ultralytics.yolo.utils.dist:generate_ddp_command"

launch = patch(
    ID,
    package="ultralytics",
    summary="workers get patches and settings, whatever happened to the environment since",
    why="a script that sets PYTHONPATH or cleans its environment starts workers without the patches",
    upstream="https://docs.ultralytics.com/reference/utils/dist/",
    since="0.1.0",
    remove_when="never: it carries ddp_patches itself to the workers",
    tested=("8.0.40", "8.3.190", "8.4.0", "8.4.190"),
)


@launch.replaces(TARGET, parameters=("world_size", "trainer"), versions="<8.3.200")
@launch.replaces(TARGET, parameters=("trainer",), versions=">=8.3.200")
def generate_ddp_command(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, _arm_workers, None)
        ledger.attempt(ID, lambda: _say_obstacles(original), None)
        return original(*arguments, **keywords)

    return replacement


def settings_for_workers(
    loaded: settings.Loaded, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What the workers need to come to this process's settings, as text.

    First, by field name, what was given to ``enable()``; second, by variable, what the user had exported
    and is no longer in ``environ``.
    """
    keywords: dict[str, str] = {}
    variables: dict[str, str] = {}
    for name, source in loaded.sources.items():
        text = settings.encode(getattr(loaded.settings, name))
        if source == "keyword":
            keywords[name] = text
        elif source == "environment" and settings.variable(name) not in environ:
            variables[settings.variable(name)] = text
    return keywords, variables


def cloudpickle_obstacle(needed: bool, installed: bool, can_install: bool) -> str:
    """What to say if this release hands its trainer over with cloudpickle, and that is missing; else "".

    ``can_install``: upstream believes that it is online, and may run pip.
    """
    if not needed or installed:
        return ""
    missing = "Ultralytics hands its trainer to the workers with cloudpickle, which is not installed"
    if can_install:
        return missing + ": it now runs pip for it, and the launch ends here if that fails."
    return missing + ", and there is no network: the launch ends here. Cure: pip install cloudpickle."


def _arm_workers() -> None:
    loaded = settings.active()
    if settings.is_off(os.environ) or not loaded.settings.propagate:
        return
    keywords, variables = settings_for_workers(loaded, os.environ)
    before = dict(os.environ)
    os.environ.update(variables)
    _finder.arm_children(keywords)
    changed = sorted(name for name, value in os.environ.items() if before.get(name) != value)
    if changed:
        ledger.record(ID, TARGET, reason="set for the workers again: %s" % ", ".join(changed))


def _say_obstacles(original: Callable[..., Any]) -> None:
    """One line for each thing that is known to stop this launch, or to leave its workers unpatched."""
    if settings.current().propagate and propagation.obstacle():
        console.warn("the workers run without ddp_patches: %s" % propagation.obstacle())
    utils = sys.modules.get("ultralytics.utils")  # the releases that need cloudpickle have no other
    can_install = bool(getattr(utils, "ONLINE", True) and getattr(utils, "AUTOINSTALL", True))
    sentence = cloudpickle_obstacle(_uses_cloudpickle(original), _is_installed("cloudpickle"), can_install)
    if sentence:
        console.warn(sentence)


def _uses_cloudpickle(original: Callable[..., Any]) -> bool:
    """Whether upstream's file for the workers is made with cloudpickle (from 8.4.140 on)."""
    makes_file = original.__globals__.get("generate_ddp_file")
    return "cloudpickle" in getattr(getattr(makes_file, "__code__", None), "co_names", ())


def _is_installed(name: str) -> bool:
    import importlib.util

    return name in sys.modules or importlib.util.find_spec(name) is not None
