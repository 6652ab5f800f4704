"""The settings: one frozen dataclass, filled from ``DDP_PATCHES_<FIELD>`` variables and keywords.

A value that cannot be understood never stops a training: the default is used and one line says so
(with ``strict`` it raises). Each field carries its own parser and its own sentence of help, so that
the command line, the README table and the messages cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import hashlib
import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import parsers
from .parsers import OFF_WORDS, SettingError, format_duration

PREFIX = "DDP_PATCHES_"
SWITCH = "DDP_PATCHES"  # DDP_PATCHES=0 turns everything off

# Set by ourselves for child processes; not settings, and not to be reported as misspelt ones.
INTERNAL_VARIABLES = frozenset(
    PREFIX + name for name in ("ARMED", "FAILURES", "KEYWORDS", "LAUNCH", "REHEARSAL", "TRACE", "WARNED")
)  # fmt: skip


def _field(
    default: Any, parse: Callable[[Any], Any], shown: str, help: str, agree: bool = False, example: str = ""
) -> Any:
    """``agree``: all ranks of a job must have the same value, or what needs agreement acts as upstream."""
    metadata = {"parse": parse, "shown": shown, "help": help, "agree": agree, "example": example}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings. Durations are seconds; ``timeout`` None: keep the caller's; ``stall_after`` 0: off."""

    timeout: Optional[float] = _field(
        7200.0,
        parsers.duration_or_keep,
        "2h",
        "floor for the collectives of process groups: the larger of it and the caller's; keep: the caller's",
        agree=True,
        example="4h",
    )
    nccl_blocking_wait: str = _field(
        "auto",
        parsers.blocking_wait,
        "auto",
        "auto: off where a framework switched it on, kept where you exported it; 0 or 1 force it",
        agree=True,
        example="0",
    )
    zero_first_timeout: float = _field(
        86400.0,
        parsers.duration,
        "24h",
        "how long ranks wait for a leader (rank 0 in a rank-0-first block) that is alive",
        agree=True,
        example="48h",
    )
    stall_after: float = _field(
        180.0,
        parsers.duration_or_off,
        "3m",
        "a rank that waits for others without progress for so long has all ranks report where they stand "
        "(the default: 10m before the first steps); off: no report",
        example="10m",
    )
    on_stall: str = _field(
        "report",
        parsers.on_stall,
        "report",
        "abort: end the job with exit code 1, abort_after the first report that nothing moves on any rank or "
        "that a rank is gone or stopped",
        example="abort",
    )
    abort_after: float = _field(
        1800.0, parsers.duration, "30m", "how long on_stall=abort waits after the first report", example="10m"
    )
    on_report: str = _field(
        "",
        parsers.text,
        "-",
        "a command that gets each stall report as JSON on its standard input, on the rank that prints it, "
        "for at most 10 seconds",
        example="/home/me/bin/tell-me",
    )
    stack_signal: str = _field(
        "SIGRTMIN+12",
        parsers.signal_name,
        "SIGRTMIN+12",
        "by which a rank asks its DataLoader worker for its stack, if it handles it at that moment; "
        "off: no stacks of workers",
        example="SIGRTMIN+5",
    )
    resample: str = _field(
        "auto",
        parsers.resample,
        "auto",
        "where OpenMMLab's data sets look for another sample when one is empty: global: everywhere; "
        "group-then-global: among those with the same flag first; auto: that for sequences, else global",
        example="group-then-global",
    )
    max_resamples: Union[int, str] = _field(
        "auto",
        parsers.count_or_auto,
        "auto",
        "draws for one sample before an error; auto: twice the data set's length, at least 1000, and ten "
        "times that once a search has succeeded; mmengine keeps its own max_refetch",
        example="60000",
    )
    exit_timeout: float = _field(
        10.0, parsers.duration, "10s", "bound on everything of ours at the end of a process", example="20s"
    )
    exit_wait: float = _field(
        1800.0,
        parsers.duration_or_off,
        "30m",
        "after success: how long the process that hosts the job's store (rank 0, unless torchrun does) stays "
        "for ranks that still work; off, and where stall_after is off: not at all",
        example="5m",
    )
    skip: Tuple[str, ...] = _field(
        (),
        parsers.patch_ids,
        "-",
        "patch ids or globs to leave out, separated by commas",
        agree=True,
        example="torch.teardown,ultralytics.*",
    )
    propagate: bool = _field(
        True,
        parsers.on_or_off,
        "on",
        "arm child processes, so that workers get the same patches",
        example="off",
    )
    strict: bool = _field(
        False, parsers.on_or_off, "off", "raise instead of falling back to upstream's behaviour", example="on"
    )
    run_dir: str = _field(
        "",
        parsers.text,
        "$XDG_STATE_HOME/ddp_patches",
        "folder for one small folder per job (newest 10 kept); none: no file at all",
        example="none",
    )
    log_level: str = _field(
        "info",
        parsers.log_level,
        "info",
        "of the ddp_patches logger: debug, info, warning, error",
        example="warning",
    )

    def agreement(self) -> Dict[str, Any]:
        """The values that all ranks of a job must share, by field name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["agree"]}

    def agreement_hash(self) -> str:
        """Twelve hex digits that are equal where :meth:`agreement` is equal."""
        text = json.dumps(self.agreement(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Settings with where each came from (``default``, ``environment``, ``keyword``) and what was wrong."""

    settings: Settings
    sources: Mapping[str, str]
    problems: Tuple[str, ...] = ()


def variable(field: str) -> str:
    """The environment variable of a field, such as ``DDP_PATCHES_TIMEOUT``."""
    return PREFIX + field.upper()


def encode(value: Any) -> str:
    """A keyword's value as the text that its variable would hold."""
    if value is None:
        return "keep"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, datetime.timedelta):
        return "%.3f" % value.total_seconds()
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(item) for item in value)
    return str(value)


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether ``DDP_PATCHES=0`` (or ``off``, ``false``, ``no``) is set."""
    return environ.get(SWITCH, "").strip().lower() in OFF_WORDS


def load(environ: Mapping[str, str], **keywords: Any) -> Loaded:
    """Settings from the environment, overridden by keywords.

    Raises SettingError for the first problem where ``strict`` is on, else returns all problems as lines.
    A keyword of an unknown name is a mistake in the caller's code and raises TypeError.
    """
    known = {field.name: field for field in dataclasses.fields(Settings)}
    for name in keywords:
        if name not in known:
            raise TypeError("ddp_patches has no setting %r%s" % (name, _nearest(name, list(known))))
    inherited = set(filter(None, environ.get(PREFIX + "KEYWORDS", "").split(",")))
    values: Dict[str, Any] = {}
    sources: Dict[str, str] = {}
    problems: List[str] = []
    for name, field in known.items():
        sources[name] = "default"
        for source, label, given in (
            ("environment", variable(name), environ.get(variable(name))),
            ("keyword", name, keywords.get(name, dataclasses.MISSING)),
        ):
            if given is dataclasses.MISSING or (source == "environment" and not given):
                continue
            try:
                values[name] = field.metadata["parse"](given)
            except SettingError as error:
                used = format_value(name, values.get(name, field.default))
                problems.append("%s=%.80r %s; %s is used instead." % (label, given, error, used))
            else:
                sources[name] = "keyword" if source == "environment" and name in inherited else source
    problems += _unknown_variables(environ, list(known))
    settings = Settings(**values)
    if settings.strict and problems:
        raise SettingError(problems[0])
    return Loaded(settings, sources, tuple(problems))


def _unknown_variables(environ: Mapping[str, str], fields: List[str]) -> List[str]:
    names = [variable(field) for field in fields]
    unknown = [
        name for name in environ
        if name.startswith(PREFIX) and name not in names and name not in INTERNAL_VARIABLES
    ]  # fmt: skip
    hints = {name: _nearest(name[len(PREFIX) :].lower(), fields, variable) for name in unknown}
    return ["%s is not a setting%s" % (name, hints[name]) for name in sorted(unknown)]


def _nearest(name: str, fields: List[str], spell: Callable[[str], str] = str) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    if close:
        return "; did you mean %s?" % spell(close[0])
    return "; there are " + ", ".join(spell(field) for field in sorted(fields)) + "."


_DURATIONS = ("timeout", "zero_first_timeout", "stall_after", "abort_after", "exit_timeout", "exit_wait")


def format_value(name: str, value: Any) -> str:
    """A setting's value as a person would write it."""
    if name in ("stall_after", "exit_wait") and not value:
        return "off"
    if name in _DURATIONS:
        return "keep" if value is None else format_duration(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(value) or "-"
    return str(value) or "-"


def fields_table() -> List[Dict[str, str]]:
    """One row per field (``name``, ``variable``, ``default``, ``help``, ``example``) for help and README."""
    return [
        {
            "name": field.name,
            "variable": variable(field.name),
            "default": field.metadata["shown"],
            "help": field.metadata["help"],
            "example": field.metadata["example"],
        }
        for field in dataclasses.fields(Settings)
    ]


_active: Optional[Loaded] = None


def active() -> Loaded:
    """What is in force in this process: set by ``enable()``, else what the environment says."""
    if _active is not None:
        return _active
    import os

    return load(os.environ)


def current() -> Settings:
    """The settings in force in this process."""
    return active().settings


def activate(loaded: Optional[Loaded]) -> None:
    """Make ``loaded`` the settings of this process (``None``: back to the environment's)."""
    global _active
    _active = loaded
