"""How the values of settings are read and written: each parser takes text or a keyword's value.

A parser raises SettingError with the rest of a sentence that begins with the name and the value.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, Optional, Tuple

OFF_WORDS = ("0", "off", "false", "no")
ON_WORDS = ("1", "on", "true", "yes")

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 366 * 86400.0  # torch keeps a timeout in milliseconds; beyond a year it is a typing error


class SettingError(ValueError):
    """A setting has a value that cannot be understood, or a name that does not exist."""

    strict = True  # load() raises it only where the setting strict is on; the finder looks for the attribute


def duration(value: Any) -> float:
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


def duration_or_keep(value: Any) -> Optional[float]:
    if value is None or str(value).strip().lower() == "keep":
        return None
    return duration(value)


def duration_or_off(value: Any) -> float:
    """Seconds; 0 for off."""
    if str(value).strip().lower() in (*OFF_WORDS, "0.0"):
        return 0.0
    return duration(value)


def on_or_off(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise SettingError("is neither on nor off")


def blocking_wait(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("auto", "0", "1"):
        raise SettingError("must be auto, 0 or 1")
    return word


def resample(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("auto", "global", "group-then-global"):
        raise SettingError("must be auto, global or group-then-global")
    return word


def on_stall(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("report", "abort"):
        raise SettingError("must be report or abort")
    return word


def signal_number(value: Any) -> int:
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


def signal_name(value: Any) -> str:
    return str(value).strip().upper() if signal_number(value) else "off"


def count_or_auto(value: Any) -> Any:
    word = str(value).strip().lower()
    if word == "auto":
        return word
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", word) or not int(word):
        raise SettingError("must be auto or a whole number above 0")
    return int(word)


def patch_ids(value: Any) -> Tuple[str, ...]:
    if isinstance(value, str):
        value = re.split(r"[,\s]+", value)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(
        isinstance(item, str) for item in value
    ):
        raise SettingError("must be patch ids, separated by commas or in a list")
    return tuple(sorted({item for item in value if item}))  # sorted: ranks compare it by its hash


def log_level(value: Any) -> str:
    word = str(value).strip().lower()
    if word not in ("debug", "info", "warning", "error"):
        raise SettingError("must be debug, info, warning or error")
    return word


def text(value: Any) -> str:
    return str(value).strip()
