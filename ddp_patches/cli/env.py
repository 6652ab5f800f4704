"""``ddp-patches env``: the variables that ``ddp-patches run`` would set, for scripts and other tools."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from typing import Dict, Mapping, Optional

from .. import propagation, settings
from . import settings_flags

HELP = "print the variables that turn the patches on, for a shell, a Dockerfile or launch.json"

_EXAMPLES = """\
examples:
  eval "$(ddp-patches env)"                    in a shell or an sbatch file
  eval "$(ddp-patches env --timeout 4h)"
  eval "$(ddp-patches env --off)"              take it back; settings that were exported stay
  docker run IMAGE ddp-patches env --format docker >> Dockerfile
                                               inside the image, whose paths they must be
  ddp-patches env --format json                the "env" of a configuration in launch.json

Every Python that is started with these variables, and that belongs to the installation that ddp-patches
is in, has the patches. PYTHONPATH keeps what it holds; ours goes first.
"""

# None: the variable is to be removed.
Changes = Dict[str, Optional[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--format",
        choices=("shell", "docker", "json"),
        default="shell",
        help="default: shell (sh, bash, zsh)",
    )
    parser.add_argument("--off", action="store_true", help="print what takes it back instead")
    settings_flags.add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the variables; 2 where a setting is wrong with ``strict``, or where nothing can be armed."""
    chosen = settings_flags.chosen(arguments)
    if arguments.off:
        print(_off(arguments.format), end="")
        return 0
    environ = dict(os.environ)
    environ.update(chosen)
    if not settings_flags.accept(environ):
        return 2
    if propagation.obstacle():
        print(f"ddp-patches: {propagation.obstacle()}", file=sys.stderr)
        return 2
    if settings.is_off(environ):
        print(
            f"ddp-patches: {settings.SWITCH}={environ[settings.SWITCH]} is set, which still wins",
            file=sys.stderr,
        )
    propagation.arm(environ)
    variables = {propagation.ARMED: propagation.installation(), **chosen}
    if arguments.format == "shell":
        print(shell_on(variables), end="")
        if sys.stdout.isatty():
            print('ddp-patches: printing changes nothing; use: eval "$(ddp-patches env)"', file=sys.stderr)
    elif arguments.format == "docker":
        print(docker_on(variables), end="")
    else:
        print(as_json({"PYTHONPATH": environ["PYTHONPATH"], **variables}), end="")
    return 0


def _off(form: str) -> str:
    if form == "docker":
        # A Dockerfile can set a variable to nothing, but it cannot remove one from PYTHONPATH.
        return f"ENV {settings.SWITCH}=0\n"
    before = dict(os.environ)
    after = dict(before)
    propagation.disarm(after)
    names = ["PYTHONPATH", propagation.ARMED] + sorted(
        set(before) - set(after) - {"PYTHONPATH", propagation.ARMED}
    )
    changes: Changes = {name: after.get(name) for name in names}
    return shell_off(changes) if form == "shell" else as_json(changes)


def shell_on(variables: Mapping[str, str]) -> str:
    """Lines for sh, bash and zsh. A second evaluation changes nothing.

    Every line ends in a semicolon and none is a comment, so that ``eval $(ddp-patches env)``, without
    the quotes, where all lines become one, works as well.
    """
    directory = shlex.quote(propagation.bootstrap_directory())
    lines = [f"export {name}={shlex.quote(value)};" for name, value in variables.items()]
    # Prepended where it is evaluated: the output may be kept in a file and used where PYTHONPATH differs.
    lines.append(
        f'case ":${{PYTHONPATH-}}:" in (*:{directory}:*) ;; '
        f'(*) export PYTHONPATH={directory}"${{PYTHONPATH:+:$PYTHONPATH}}";; esac;'
    )
    return "\n".join(lines) + "\n"


def shell_off(changes: Changes) -> str:
    """Lines for sh, bash and zsh that set or remove variables."""
    return "".join(
        f"unset {name};\n" if value is None else f"export {name}={shlex.quote(value)};\n"
        for name, value in changes.items()
    )


def docker_on(variables: Mapping[str, str]) -> str:
    """ENV lines of a Dockerfile; PYTHONPATH is prepended when the image is built."""
    lines = [f"ENV {name}={_docker_quote(value)}" for name, value in variables.items()]
    path = _docker_quote(propagation.bootstrap_directory())[:-1]
    lines.append(f'ENV PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"')
    return "\n".join(lines) + "\n"


def _docker_quote(value: str) -> str:
    for character in ("\\", '"', "$"):
        value = value.replace(character, "\\" + character)
    return f'"{value}"'


def as_json(changes: Mapping[str, str | None]) -> str:
    """One JSON object; null removes a variable."""
    return json.dumps(changes, indent=2) + "\n"
