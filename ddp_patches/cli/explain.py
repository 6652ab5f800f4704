"""``ddp-patches explain``: what happened, from the logs of a run that died or hangs. Needs no torch."""

from __future__ import annotations

import argparse
import json
import sys

from ..explain import findings, gathering, text
from ..tables import colours_wanted

HELP = "what happened in a run that died or hangs, from its logs: which rank, why, what to try"

EXIT_FOUND, EXIT_NOTHING, EXIT_UNREADABLE = 0, 1, 2

_EXAMPLES = """\
examples:
  ddp-patches explain train.log
  ddp-patches explain slurm-4711.out             what srun and sbatch have collected
  ddp-patches explain work_dirs/my_config        a folder: its newest run
  ddp-patches explain /tmp/torchelastic_abc      torchrun --log_dir: all ranks, the last attempt
  ddp-patches explain rank0.log.gz rank1.log.gz  one run in several files; names with a rank help
  kubectl logs POD | ddp-patches explain -
  ddp-patches explain --json train.log           for programs; the shape is stable ("version": 1)

It knows the messages of torch 1.8 to 2.14, torchrun, torch.distributed.launch, mp.spawn, Slurm, Kaggle's
JSON log, Ultralytics and OpenMMLab, and ddp_patches' own. It says what is certain and what is only likely.
Give the output of all ranks: the rank that is missing is often the one whose log is missing, too.

exit code: 0 something was found, 1 nothing was found, 2 a file cannot be read
Nothing that is read is executed; the logs stay on this machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="log files (also .gz), folders, or - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; 2 where a path cannot be read, even if the others told something."""
    collected, problems = gathering.gather(arguments.paths)
    report = findings.conclude(collected)
    for problem in problems:
        print("ddp-patches: %s" % text.one_line(problem), file=sys.stderr)
    if arguments.json:
        print(json.dumps(text.as_dict(report), indent=2))
    elif report.sources or not problems:
        print(text.text(report, colours_wanted()))
    if problems:
        return EXIT_UNREADABLE
    return EXIT_FOUND if report.findings or report.notes else EXIT_NOTHING
