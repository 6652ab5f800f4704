"""Ultralytics' relaunch of a training as one worker for each GPU, seen from the process that launches.

``generate_ddp_command`` is what it calls right before it starts the workers. They get the patches and
settings through environment variables. Between ``import ddp_patches.auto`` and ``train()`` lie the user's own
lines, and ``os.environ["PYTHONPATH"] = "/my/code"`` is a common one: without this patch the workers then run
unpatched, and nobody is told. So the environment is armed again here, the last place before
``subprocess.run``; what the user wrote there stays. The port that upstream has found free is kept, so that
nobody else takes it meanwhile.

``BaseTrainer.train`` is what ends when the launch does, in whatever way. A signal goes to the launcher, which
ends its workers; a failure of a worker reaches the caller with that worker's own traceback; upstream's files
are removed. In a worker it is the training itself: an exception there is written down for the parent, and the
worker ends when launcher or parent are gone (``torch.launcher`` has the launcher's part).

Nothing of ours is written into the run's folder: upstream has just removed it, and would remove it again.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any, Callable, Mapping, Optional

from ... import _finder, console, propagation, settings
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import failures, family, interruption, launched
from ...runtime.watch import Watch
from . import _parent

ID = "ultralytics.launch"
TARGET = "ultralytics.utils.dist|ultralytics.yolo.utils.dist:generate_ddp_command"
TRAIN = "ultralytics.engine.trainer|ultralytics.yolo.engine.trainer:BaseTrainer.train"

launch = patch(
    ID,
    package="ultralytics",
    summary="workers get patches and settings, end with whoever launched them, and say why they fail",
    why="a script that sets PYTHONPATH starts workers without the patches; Ctrl-C or the death of the parent "
    "leaves them running; the parent knows nothing but that its command has failed",
    upstream="https://docs.ultralytics.com/reference/utils/dist/",
    since="0.1.0",
    remove_when="never: it carries ddp_patches itself to the workers",
    tested=("8.0.40", "8.0.100", "8.2.103", "8.3.190", "8.4.0", "8.4.190"),
)


_launching: Optional[_parent.Launch] = None  # in the parent, while its train() runs
_watch: Optional[Watch] = None  # in a worker


@launch.replaces(TARGET, parameters=("world_size", "trainer"), versions="<8.3.200", by_name=True)
@launch.replaces(TARGET, parameters=("trainer",), versions=">=8.3.200", by_name=True)
def generate_ddp_command(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, _arm_workers, None)
        ledger.attempt(ID, lambda: _say_obstacles(original), None)
        call = ledger.attempt(ID, lambda: signature.bind(*arguments, **keywords), None)
        trainer = call.arguments.get("trainer") if call is not None else None
        try:
            made = original(*arguments, **keywords)
        except BaseException:
            # Upstream removes its file only if this function has returned.
            ledger.attempt(ID, lambda: _remove_generated(original, trainer), None)
            raise
        return ledger.attempt(ID, lambda: _prepared(made, trainer), made)

    if launched.as_worker() is not None:
        ledger.attempt(ID, _begin_worker, None)
    return replacement


@launch.replaces(TRAIN)
def train(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if "LOCAL_RANK" in os.environ:
            return _train_as_worker(original, self, arguments, keywords)
        return _train_as_parent(original, self, arguments, keywords)

    return replacement


def _train_as_worker(original: Callable[..., Any], trainer: Any, arguments: Any, keywords: Any) -> Any:
    try:
        return original(trainer, *arguments, **keywords)
    except BaseException as error:
        failures.report(error)  # early releases catch it, and nobody else would know
        raise


def _train_as_parent(original: Callable[..., Any], trainer: Any, arguments: Any, keywords: Any) -> Any:
    global _launching
    before, own = _launching, _parent.Launch()
    _launching = own
    report = ""
    try:
        result = original(trainer, *arguments, **keywords)
        report = ledger.attempt(ID, own.report, "") if own.has_failed else ""
    except subprocess.CalledProcessError as error:
        report = ledger.attempt(ID, own.report, "")
        if report:
            raise _with_report(error, report) from error.__cause__
        if not own.was_interrupted:
            raise
        result = None
    except (KeyboardInterrupt, interruption.Ended):
        if not own.was_interrupted:
            raise
        result = None
    finally:
        _launching = before
        ledger.attempt(ID, own.close, None)
    if report:  # early releases print the exception, and go on
        console.warn(report)
    own.follow_signal()
    return result


def _with_report(error: subprocess.CalledProcessError, report: str) -> _parent.WorkersFailed:
    told = _parent.WorkersFailed(error.returncode, error.cmd, error.output, error.stderr)
    told.report = report
    return told.with_traceback(error.__traceback__)


def _prepared(made: Any, trainer: Any) -> Any:
    """Upstream's command and file, prepared for the launch that follows."""
    if _launching is None:  # somebody else than train() wants a command
        return made
    command, file = made
    is_generated = str(file).endswith("%d.py" % id(trainer))
    return _launching.prepare([str(word) for word in command], str(file), is_generated), file


def _remove_generated(original: Callable[..., Any], trainer: Any) -> None:
    folder = original.__globals__.get("USER_CONFIG_DIR")
    if folder is not None:
        for path in _parent.generated_files(os.path.join(str(folder), "DDP"), trainer):
            os.unlink(path)


def _begin_worker() -> None:
    """In a rank, as soon as it has imported the function with which its parent launched it."""
    global _watch
    found = launched.as_worker()
    if found is None or found.launcher is None or _watch is not None:
        return
    failures.install()
    _watch = Watch(
        {"the process that has launched this training": found.parent, "torch's launcher": found.launcher},
        tidy=lambda: None if found.parent.is_alive() else found.tidy(),
        before=family.own_workers,
    )
    own = _parent.library()
    if found.library and own != found.library and os.environ.get("LOCAL_RANK") == "0":
        text = "the workers import another copy of Ultralytics than the process that launched them"
        console.warn("%s: %s here, %s there" % (text, own, found.library))


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
