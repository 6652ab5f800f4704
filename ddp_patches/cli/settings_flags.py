"""One ``--<field>`` option for each setting, which ends up in the environment of whatever is started."""

from __future__ import annotations

import argparse
import sys
from typing import Mapping, MutableMapping

from .. import _finder, settings

_DESTINATION = "setting_"  # a setting may have the name of a command's own option


def add_flags(parser: argparse.ArgumentParser) -> None:
    """An option for each field of :class:`ddp_patches.Settings`; a switch also gets its ``--no-`` form."""
    group = parser.add_argument_group(
        "settings", "Each is also an environment variable: --timeout 4h is DDP_PATCHES_TIMEOUT=4h."
    )
    defaults = settings.Settings()
    for row in settings.fields_table():
        name = row["name"]
        option = name.replace("_", "-")
        text = f"{row['help']} (default: {row['default']})".replace("%", "%%")
        if isinstance(getattr(defaults, name), bool):
            both = group.add_mutually_exclusive_group()
            both.add_argument(
                f"--{option}", dest=_DESTINATION + name, action="store_const", const="1", help=text
            )
            both.add_argument(f"--no-{option}", dest=_DESTINATION + name, action="store_const", const="0")
        else:
            group.add_argument(
                f"--{option}", dest=_DESTINATION + name, metavar=row["example"] or "VALUE", help=text
            )


def chosen(arguments: argparse.Namespace) -> Mapping[str, str]:
    """The variables that the options of a command line stand for, by name."""
    given = vars(arguments)
    return {
        row["variable"]: given[_DESTINATION + row["name"]]
        for row in settings.fields_table()
        if given.get(_DESTINATION + row["name"]) is not None
    }


def accept(environ: MutableMapping[str, str], quiet: bool = False) -> bool:
    """Print a line for each setting in ``environ`` that cannot be understood; False where ``strict`` is on.

    Without ``strict`` the default is used for such a setting, and the command goes on. What has been
    said is noted in ``environ``, so that the processes started with it do not say it again.
    """
    try:
        problems = settings.load(environ).problems
    except settings.SettingError as error:
        print(f"ddp-patches: {error} (strict is on: stopped)", file=sys.stderr)
        return False
    for problem in problems:
        if _finder.is_first_to_say(problem, environ) and not quiet:
            print(f"ddp-patches: {problem}", file=sys.stderr)
    return True
