"""The demo: a training that dies of rank 0's slow label scan, and the same training with ddp_patches.

Started by `nox -s demo`, which installs what it needs. Two ranks on the CPU, through Ultralytics' own
relaunch, over a data set that is made on the spot; nothing is downloaded. A stand-in (slow_disk/) scales
hours down to seconds, in both runs alike. Exit code 0 if the first run dies of the limit and the second one
trains, 1 and the reason if not.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from importlib import metadata

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from demo import verdict  # noqa: E402

import ddp_patches  # noqa: E402
from ddp_patches.rehearse import gpus  # noqa: E402
from support import dataset, environment, processes  # noqa: E402

# Instead of 10800. Shorter ones are too short for DDP's own first steps on a busy machine.
GROUP_LIMIT_SECONDS = 15.0
SECONDS_PER_IMAGE = 1.25
TRAIN_IMAGES, VAL_IMAGES = 20, 4  # 25 s and 5 s of scanning
RUN_LIMIT_SECONDS = 600.0  # for one run, which takes about a minute on an idle machine
STATUS_LIMIT_SECONDS = 60.0

WIDTH = 110  # columns
TAIL_LINES = 60  # of a run that went wrong
TRAINING = ["detect", "train", "model=yolov8n.yaml", "device=0,1", "epochs=1", "imgsz=64", "batch=4"]
TRAINING += ["workers=0", "plots=False"]
WRITTEN = ("results.csv", "weights/best.pt", "weights/last.pt")

WHAT_HAPPENS = """\
Rank 0 scans the labels of the data set while the other ranks wait for it in a barrier. With a large data set
or a slow disk that takes longer than the limit of the process group, and the job dies.

In both runs the same stand-in turns hours into seconds: reading the label of one image takes {each:g} s,
{scan:g} s for the {images} images, and the limit of the process group is {limit:g} s instead of 3 h.
All the rest is Ultralytics as it is installed: its own relaunch by torchrun, two ranks, a real epoch, a real
validation. The ranks are CPU processes over gloo. Nothing is downloaded.
"""


class Interrupted(Exception):
    """SIGTERM or SIGHUP came."""


class Demo:
    """The two runs in one temporary folder."""

    def __init__(self, folder: pathlib.Path, verbose: bool) -> None:
        self.folder = folder
        self.verbose = verbose
        self.running: list[processes.Running] = []
        self._yolo = shutil.which("yolo", path=os.path.dirname(sys.executable))

    def environment(self, **variables: str) -> dict[str, str]:
        """Of every process: everything that is written goes to the demo's folder."""
        return environment.clean(
            self.folder,
            HERE / "slow_disk",
            DEMO_GROUP_LIMIT_SECONDS=str(GROUP_LIMIT_SECONDS),
            DEMO_SECONDS_PER_IMAGE=str(SECONDS_PER_IMAGE),
            MPLCONFIGDIR=str(self.folder / "matplotlib"),
            YOLO_AUTOINSTALL="false",
            **variables,
        )

    def train(self, name: str, *options: str, **variables: str) -> verdict.Ended:
        """Train once, over a data set of its own; shows the command and what it says."""
        data = dataset.make(self.folder / name / "data", train=TRAIN_IMAGES, val=VAL_IMAGES)
        # Hidden: the demo is the same on every machine.
        hiding = ["--even-with-gpus"] if gpus.visible() else []
        rehearse = ["rehearse", "-n", str(verdict.RANKS), *hiding, *options, "--"]
        training = [*TRAINING, "data=%s" % data, "project=%s" % (self.folder / name / "runs")]
        shown = ["%s=%s" % pair for pair in variables.items()]
        shown += ["ddp-patches", *rehearse, "yolo", *training]
        self.say("$ " + " ".join(shown))
        running = self.start(name, [*rehearse, self._yolo, *training], **variables)
        return self.follow(running)

    def start(self, name: str, arguments: list[object], **variables: str) -> processes.Running:
        """Start a command of ddp-patches."""
        command = [sys.executable, "-m", "ddp_patches", *arguments]
        running = processes.Running(command, self.folder, self.environment(**variables), name)
        self.running.append(running)
        return running

    def follow(self, running: processes.Running) -> verdict.Ended:
        """Show a run's lines with the seconds since its start, until it ends or its limit is over."""
        began = time.monotonic()
        seen = [0, 0]
        ended = False
        while not ended:
            ended = running.popen.poll() is not None or time.monotonic() - began > RUN_LIMIT_SECONDS
            seconds = time.monotonic() - began
            for stream, text in enumerate((running.stdout(), running.stderr())):
                # An unfinished line waits for its end.
                end = len(text) if ended else max(text.rfind("\n"), text.rfind("\r")) + 1
                self.show(seconds, text[seen[stream] : end])
                seen[stream] = max(seen[stream], end)
            if not ended:
                time.sleep(0.2)
        result = running.wait(0)
        code = "ended by the demo" if result.returncode is None else "exit code %d" % result.returncode
        print("%5.0f s  %s" % (result.seconds, code), flush=True)
        return verdict.Ended(result.returncode, result.seconds, result.stdout + "\n" + result.stderr)

    def show(self, seconds: float, text: str) -> None:
        """Print those lines of a run that tell the story; with --verbose all of them."""
        for line in verdict.lines_of(text):
            if self.verbose or verdict.is_shown(line):
                self.say(line if self.verbose else verdict.shortened(line), "%5.0f s  " % seconds)

    def say(self, text: str, start: str = "") -> None:
        """Print, folded to the width, with the name of the temporary folder cut out."""
        short = text.replace(str(self.folder) + "/", "").replace(sys.executable, "python")
        rest = " " * (len(start) or 4)
        print(
            textwrap.fill(short, WIDTH, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False),
            flush=True,
        )

    def status(self, *options: str) -> str:
        """What `ddp-patches status --run newest` prints."""
        arguments: list[object] = ["status", "--run", "newest", *options]
        result = self.start("status" + "".join(options), arguments).wait(STATUS_LIMIT_SECONDS)
        return result.stdout if result.returncode == 0 else ""

    def ledger(self) -> dict[str, object]:
        """The ledger of the newest job; empty where there is none."""
        text = self.status("--json")
        return json.loads(text) if text else {}

    def missing_files(self, name: str) -> list[str]:
        """What a training leaves and this one has not."""
        run = self.folder / name / "runs" / "train"
        return [file for file in WRITTEN if not (run / file).is_file()]

    def play(self) -> str:
        """Tell the whole story; returns what went wrong, or an empty string."""
        print("Demo of ddp_patches " + versions() + "\n")
        scan = SECONDS_PER_IMAGE * TRAIN_IMAGES
        print(
            WHAT_HAPPENS.format(
                each=SECONDS_PER_IMAGE, images=TRAIN_IMAGES, scan=scan, limit=GROUP_LIMIT_SECONDS
            )
        )
        print("1. Without ddp_patches\n")
        without = self.train("without", "--without-patches")
        problem = verdict.problem_without(without, GROUP_LIMIT_SECONDS)
        if problem:
            return self.evidence(problem, without)
        print("\nThe job is dead. What people see, and search for:\n")
        self.say(verdict.upstream_message(without.output, GROUP_LIMIT_SECONDS), "    ")

        print("\n2. With ddp_patches; DDP_PATCHES_TIMEOUT=keep leaves the limit as short as it was\n")
        with_ = self.train("with", DDP_PATCHES_TIMEOUT="keep")
        problem = verdict.problem_with(
            with_, GROUP_LIMIT_SECONDS, self.missing_files("with"), self.ledger() if with_.code == 0 else {}
        )
        if problem:
            return self.evidence(problem, with_)
        print(
            "\nThe same scan (%.0f s), the same limit (%.0f s), and the job has trained, validated and"
            "\nwritten its weights: rank 1 waited for rank 0 outside of any collective (%s).\n"
            % (verdict.longest_scan_s(with_.output), GROUP_LIMIT_SECONDS, verdict.CURE)
        )
        print("3. The ledger of both ranks\n\n$ ddp-patches status --run newest\n")
        print(self.status())
        return ""

    def evidence(self, problem: str, ended: verdict.Ended) -> str:
        """Print the end of a run that went wrong; returns the problem."""
        print("\nThe last lines of this run:\n")
        for line in verdict.lines_of(ended.output)[-TAIL_LINES:]:
            print("    " + line.replace(str(self.folder) + "/", ""))
        return problem

    def end(self) -> None:
        """End everything that still runs."""
        for running in self.running:
            running.end()


def versions() -> str:
    """What is installed here."""
    found = ["%s %s" % (name, metadata.version(name)) for name in ("ultralytics", "torch")]
    return ", ".join([ddp_patches.__version__, *found, "Python %d.%d.%d" % sys.version_info[:3]])


def obstacle() -> str:
    """Why the demo cannot run here, or an empty string."""
    if os.name != "posix":
        return "the demo needs Linux or macOS"
    missing = [name for name in ("torch", "ultralytics", "cloudpickle") if not is_installed(name)]
    if missing or not shutil.which("yolo", path=os.path.dirname(sys.executable)):
        return "not installed in this Python: %s; start it by: nox -s demo" % (", ".join(missing) or "yolo")
    return ""


def is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def interrupt(number: int, frame: object) -> None:
    raise Interrupted(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="show every line of both runs")
    arguments = parser.parse_args()
    reason = obstacle()
    if reason:
        print("demo: " + reason, file=sys.stderr)
        return 2
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), interrupt)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddp_patches_demo_") as folder:
        demo = Demo(pathlib.Path(folder).resolve(), arguments.verbose)
        try:
            problem = demo.play()
        except (KeyboardInterrupt, Interrupted) as error:
            number = error.args[0] if isinstance(error, Interrupted) else signal.SIGINT
            print("\ndemo: interrupted; everything that it started is being ended", file=sys.stderr)
            return 128 + number
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
            demo.end()
    print("The demo took %.0f s." % (time.monotonic() - began), end=" ")
    print("It FAILED: " + problem if problem else "Its temporary folder, ledger included, is deleted.")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
