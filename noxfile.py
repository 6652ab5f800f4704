"""Everything that is run on this project: `pip install nox && nox`, or `nox -s NAME`; `nox -l` lists them.

`nox` alone runs the everyday subset of tests/matrix/cells.json, `nox -s matrix` all of it, and
`nox -s matrix -- WORD` the cells with that word in their name. Without uv every environment is a full copy.

What is installed comes from the package index as it is configured. Plain `torch` is a CUDA build of several
gigabytes on many of them; it runs on a machine without a GPU all the same. Smaller: with uv installed, set
UV_TORCH_BACKEND=cpu, or offer a CPU wheel by PIP_FIND_LINKS; cells about CUDA builds are then not run.
"""

from __future__ import annotations

import os
import pathlib
import sys

import nox

sys.path.insert(0, str(pathlib.Path(__file__).parent / "tests"))

from matrix import install, machine, outcomes, results
from support import releases

LINTERS = ["mypy==2.4.*", "ruff==0.17.*"]
# All of them wait most of the time: core's for small processes of their own, the others for two to four
# ranks that import torch first. Many more of these at a time than cores run into each other's time limits.
CORE_WORKERS = min(8, 2 * (os.cpu_count() or 1))
RANK_WORKERS = min(8, 1 + (os.cpu_count() or 1))
# A CI machine may be busy with other things for a minute. What needed a second try is listed by name.
RERUNS = ["--reruns", "2", "-raR"] if "CI" in os.environ else []

# No exact versions: any Python will do, and each gets the newest torch made for it.
DEMO_REQUIREMENTS = [
    "torch<=" + releases.TORCH,
    "torchvision<=" + releases.TORCHVISION,
    "opencv-python-headless<5",
    "cloudpickle",
    "matplotlib",
    "pillow",
    "polars",
    "psutil",
    "pyyaml",
    "requests",
    "scipy",
]
DEMO_WITHOUT_DEPENDENCIES = ["ultralytics==" + releases.NEWEST_ULTRALYTICS, "ultralytics-thop"]

CELLS = releases.cells()
EVERYDAY = [cell for cell in CELLS if cell.get("everyday")]
NEWEST = releases.newest_cells()
MINIMUMS = [cell for cell in CELLS if cell.get("minimums")]

# After `--`: a cell that cannot run here, or a release that cannot be had, is then no failure. It is listed.
TOLERATE = "--tolerate-missing"

# Not virtualenv: its newest releases make no environment for Python 3.8.
nox.options.default_venv_backend = "uv|venv"
# By itself nox takes a session whose Python is missing for a success.
nox.options.error_on_missing_interpreters = TOLERATE not in sys.argv
# Live comes last: it is the longest, and what it says is what people want to read at the end.
nox.options.sessions = ["lint", "core", "legacy", "live"]

# What follows `--`: nox hands it to a session, when the session's interpreter has been found.
WORDS = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []

machine.find_interpreters()
machine.prepare_environment()
nox.options.report = outcomes.list_at_exit({"matrix": CELLS, "minimums": MINIMUMS, "newest": NEWEST}, WORDS)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install(".", *LINTERS, "pytest")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(python=[cell["python"] for cell in EVERYDAY if cell["environment"] == "python"])
def core(session: nox.Session) -> None:
    """Everyday: run what needs no framework."""
    run_everyday(session, "python")


@nox.session(python=releases.ENVIRONMENTS["torch-1.12"]["python"])
def legacy(session: nox.Session) -> None:
    """Everyday: run some of what needs torch alone, with the oldest of everything."""
    run_everyday(session, "torch-1.12")


@nox.session(python=releases.ENVIRONMENTS[releases.CURRENT]["python"])
def live(session: nox.Session) -> None:
    """Everyday: run all that needs torch alone on a current one, and real frameworks."""
    run_everyday(session, releases.CURRENT)


def environments(cells: list[dict]) -> list[nox.param]:
    """A session for each environment and Python: its cells run in it one after the other.

    Only what the cells that are asked for need: another interpreter may be missing.
    """
    wanted = outcomes.asked_for(cells, WORDS) or cells
    pairs = dict.fromkeys((cell["python"], cell["environment"]) for cell in wanted)
    return [nox.param(*pair, id=outcomes.session_id(*pair)) for pair in pairs]


@nox.session
@nox.parametrize("python,environment", environments(CELLS))
def matrix(session: nox.Session, environment: str) -> None:
    """Run all cells of tests/matrix/cells.json, or after `--` those with one of the words in their name."""
    run_cells(session, environment, CELLS)


@nox.session
@nox.parametrize("python,environment", environments(MINIMUMS))
def minimums(session: nox.Session, environment: str) -> None:
    """Run the cells with the lowest versions that are allowed."""
    run_cells(session, environment, MINIMUMS)


@nox.session
@nox.parametrize("python,environment", environments(NEWEST))
def newest(session: nox.Session, environment: str) -> None:
    """Run the newest torch and the newest release of every framework from the index."""
    run_cells(session, environment, NEWEST)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what ddp_patches costs. What follows `--` goes to the benchmark."""
    session.install(".")
    for path in sorted(pathlib.Path("benchmarks").glob("*.py")):
        session.run("python", str(path), *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Train on two CPU ranks with a slow label scan: first without ddp_patches, then with it."""
    session.install(".", *DEMO_REQUIREMENTS)
    session.install("--no-deps", *DEMO_WITHOUT_DEPENDENCIES)
    # After Ctrl-C it has to end two ranks and their launcher, and to remove its folder.
    command = ["python", "tests/demo/run_demo.py", *session.posargs]
    session.run(*command, interrupt_timeout=15, terminate_timeout=15)


@nox.session
def drift(session: nox.Session) -> None:
    """Compare the newest release of every framework with what the patches need; `-- PACKAGE` for one."""
    session.install(".", "pip")
    session.run("python", "-m", "fingerprints.drift", *session.posargs, env={"PYTHONPATH": "tests"})


def run_tests(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run pytest on the installed package."""
    workers = CORE_WORKERS if "tests/core" in arguments else RANK_WORKERS
    options = ["-n", str(workers), "--dist", "worksteal", "--durations", "15", *RERUNS]
    session.run("pytest", *options, *arguments, env=environment)


def run_everyday(session: nox.Session, environment: str) -> None:
    """Run the everyday part of an environment. What follows `--` on nox's command line goes to pytest.

    Paths there take the place of the everyday ones.
    """
    cells = [cell for cell in EVERYDAY if cell["environment"] == environment]
    cells = [cell for cell in cells if cell["python"] == session.python]
    install.environment(session, environment)
    layers = install.layers(session)
    for cell in cells:
        if "release" in cell:
            install.layer(session, cell["release"], layers)
    more = [argument for argument in session.posargs if argument != TOLERATE]
    paths: dict[str, None] = {}
    if not any(os.path.exists(argument.partition("::")[0]) for argument in more):
        for cell in cells:
            paths.update(dict.fromkeys(cell["run"] if cell["everyday"] is True else cell["everyday"]))
    run_tests(session, *paths, "-m", "not matrix", *more, TEST_LAYERS=str(layers))


def run_cells(session: nox.Session, environment: str, cells: list[dict]) -> None:
    """Run those of the cells that belong to this environment, all of them whatever happens."""
    asked_for = outcomes.asked_for(cells, session.posargs)
    if not asked_for:
        session.error("no cell has one of these in its name: %s" % " ".join(session.posargs))
    here = outcomes.of_session(asked_for, session.python, environment)
    outcomes.plan(here)
    problem = ""
    try:
        install.environment(session, environment)
    except nox.command.CommandFailed as error:
        problem = "environment %s could not be installed: %s" % (environment, error)
    found = [outcomes.run_cell(session, cell, problem, run_tests) for cell in here]
    wrong = {results.FAILED} if TOLERATE in session.posargs else {results.FAILED, results.NOT_RUN}
    if wrong.intersection(found):
        session.error("not every cell passed; they are listed at the end")
