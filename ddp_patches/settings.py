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
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

PREFIX = "DDP_PATCHES_"
SWITCH = "DDP_PATCHES"  # DDP_PATCHES=0 turns everything off
OFF_WORDS = ("0", "off", "false", "no")
ON_WORDS = ("1", "on", "true", "yes")

# Set by ourselves for child processes; not settings, and not to be reported as misspelt ones.
INTERNAL_VARIABLES = frozenset(
    PREFIX + name for name in ("ARMED", "FAILURES", "KEYWORDS", "LAUNCH", "REHEARSAL", "TRACE", "WARNED")
)  # fmt: skip

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 366 * 86400.0  # torch keeps a timeout in milliseconds; beyond a year it is a typing error


class SettingError(ValueError):
    """A setting has a value that cannot be understood, or a name that does not exist."""

    strict = True  # load() raises it only where the setting strict is on; the finder looks for the attribute


def parse_duration(value: Any) -> float:
    """Seconds of a duration: a number, ``"7200"``, ``"90m"``, ``"1.5h"``, ``"1h30m"`` or a timedelta.

    Raises SettingError for anything else, for zero and for negative values.
    """
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value  # float() of a very long integer overflows
    else:
        text = str(value).strip().lower()
        parts = re.findall(r"(\d+(?:\.\d+)?|\.\d+)\s*([smhd]?)", text)
        if not parts or re.sub(r"(\d+(?:\.\d+)?|\.\d+)\s*[smhd]?\s*", "", text):
            raise SettingError("is not a duration (examples: 7200, 90m, 2h, 1h30m)")
        if len(parts) > 1 and any(not unit for _, unit in parts):
            raise SettingError("is not a duration (each part of a compound needs its unit, as in 1h30m)")
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 < seconds <= _LONGEST:
        raise SettingError("must be more than 0 seconds and at most a year")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """A duration as people write it: ``2h``, ``1h30m``, ``45s``, ``1.5s``."""
    if seconds != int(seconds):
        return "%gs" % round(seconds, 3)
    rest = int(seconds)
    text = ""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            text += "%d%s" % (count, unit)
    return text or "0s"


def _duration_or_keep(value: Any) -> Optional[float]:
    if value is None or str(value).strip().lower() == "keep":
        return None
    return parse_duration(value)


def _duration_or_off(value: Any) -> float:
    """Seconds; 0 for off."""
    if str(value).strip().lower() in (*OFF_WORDS, "0.0"):
        return 0.0
    return parse_duration(value)


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise SettingError("is neither on nor off")


def _blocking_wait(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("auto", "0", "1"):
        raise SettingError("must be auto, 0 or 1")
    return word


def _resample(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("auto", "global", "group-then-global"):
        raise SettingError("must be auto, global or group-then-global")
    return word


def _on_stall(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("report", "abort"):
        raise SettingError("must be report or abort")
    return word


def parse_signal(value: Any) -> int:
    """The number of a signal that means nothing by itself, ``SIGRTMIN+12`` or ``46``; 0 for off.

    Raises SettingError for any other signal.
    """
    import signal

    word = str(value).strip().upper()
    if word.lower() in OFF_WORDS:
        return 0
    name, _, offset = word.partition("+")
    number = int(word) if word.isdigit() else int(getattr(signal, name, 0)) if name.startswith("SIG") else 0
    number += int(offset) if offset.isdigit() else 0
    first, last = int(getattr(signal, "SIGRTMIN", 34)), int(getattr(signal, "SIGRTMAX", 64))
    free = (getattr(signal, "SIGUSR1", 0), getattr(signal, "SIGUSR2", 0))
    if not first <= number <= last and number not in free:
        raise SettingError("must be off, a real-time signal (SIGRTMIN+12), SIGUSR1 or SIGUSR2")
    return number


def _signal(value: Any) -> str:
    return str(value).strip().upper() if parse_signal(value) else "off"


def _count_or_auto(value: Any) -> Any:
    word = str(value).strip().lower()
    if word == "auto":
        return word
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", word) or not int(word):
        raise SettingError("must be auto or a whole number above 0")
    return int(word)


def _ids(value: Any) -> Tuple[str, ...]:
    if isinstance(value, str):
        value = re.split(r"[,\s]+", value)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(
        isinstance(item, str) for item in value
    ):
        raise SettingError("must be patch ids, separated by commas or in a list")
    return tuple(sorted({item for item in value if item}))  # sorted: ranks compare it by its hash


def _level(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("debug", "info", "warning", "error"):
        raise SettingError("must be debug, info, warning or error")
    return word


def _text(value: Any) -> str:
    return str(value).strip()


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
        _duration_or_keep,
        "2h",
        "floor for the collectives of process groups: the larger of it and the caller's; keep: the caller's",
        agree=True,
        example="4h",
    )
    nccl_blocking_wait: str = _field(
        "auto",
        _blocking_wait,
        "auto",
        "auto: off where a framework switched it on, kept where you exported it; 0 or 1 force it",
        agree=True,
        example="0",
    )
    zero_first_timeout: float = _field(
        86400.0,
        parse_duration,
        "24h",
        "how long ranks wait for a leader (rank 0 in a rank-0-first block) that is alive",
        agree=True,
        example="48h",
    )
    stall_after: float = _field(
        180.0,
        _duration_or_off,
        "3m",
        "a rank that waits for others without progress for so long has all ranks report where they stand "
        "(the default: 10m before the first steps); off: no report",
        example="10m",
    )
    on_stall: str = _field(
        "report",
        _on_stall,
        "report",
        "abort: end the job with exit code 1, abort_after the first report that nothing moves on any rank or "
        "that a rank is gone or stopped",
        example="abort",
    )
    abort_after: float = _field(
        1800.0, parse_duration, "30m", "how long on_stall=abort waits after the first report", example="10m"
    )
    on_report: str = _field(
        "",
        _text,
        "-",
        "a command that gets each stall report as JSON on its standard input, on the rank that prints it, "
        "for at most 10 seconds",
        example="/home/me/bin/tell-me",
    )
    stack_signal: str = _field(
        "SIGRTMIN+12",
        _signal,
        "SIGRTMIN+12",
        "by which a rank asks its DataLoader worker for its stack, if it handles it at that moment; "
        "off: no stacks of workers",
        example="SIGRTMIN+5",
    )
    resample: str = _field(
        "auto",
        _resample,
        "auto",
        "where OpenMMLab's data sets look for another sample when one is empty: global: everywhere; "
        "group-then-global: among those with the same flag first; auto: that for sequences, else global",
        example="group-then-global",
    )
    max_resamples: Union[int, str] = _field(
        "auto",
        _count_or_auto,
        "auto",
        "draws for one sample before an error; auto: twice the data set's length, at least 1000, and ten "
        "times that once a search has succeeded; mmengine keeps its own max_refetch",
        example="60000",
    )
    exit_timeout: float = _field(
        10.0, parse_duration, "10s", "bound on everything of ours at the end of a process", example="20s"
    )
    skip: Tuple[str, ...] = _field(
        (),
        _ids,
        "-",
        "patch ids or globs to leave out, separated by commas",
        agree=True,
        example="torch.teardown,ultralytics.*",
    )
    propagate: bool = _field(
        True, _switch, "on", "arm child processes, so that workers get the same patches", example="off"
    )
    strict: bool = _field(
        False, _switch, "off", "raise instead of falling back to upstream's behaviour", example="on"
    )
    run_dir: str = _field(
        "",
        _text,
        "$XDG_STATE_HOME/ddp_patches",
        "folder for one small folder per job (newest 10 kept); none: no file at all",
        example="none",
    )
    log_level: str = _field(
        "info", _level, "info", "of the ddp_patches logger: debug, info, warning, error", example="warning"
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


def format_value(name: str, value: Any) -> str:
    """A setting's value as a person would write it."""
    if name == "stall_after" and not value:
        return "off"
    if name in ("timeout", "zero_first_timeout", "stall_after", "abort_after", "exit_timeout"):
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
