"""Everything that is run on this project: `pip install nox && nox`, or `nox -s NAME`; `nox -l` lists them.

What is installed comes from the package index as it is configured. Plain `torch` is a CUDA build of several
gigabytes on many of them; it runs on a machine without a GPU all the same. Smaller: with uv installed, set
UV_TORCH_BACKEND=cpu, or offer a CPU wheel by PIP_FIND_LINKS.
"""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import shutil

import nox

ROOT = pathlib.Path(__file__).parent
RELEASES = runpy.run_path(str(ROOT / "tests" / "support" / "releases.py"))

CORE_PYTHONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]
LIVE_PYTHON = "3.11"
LEGACY_PYTHON = "3.8"

# The lower bound of pyproject.toml. On the other Pythons this wrapt runs its slower pure-Python form.
OLDEST_WRAPT = "wrapt==1.14.2"
OLDEST_WRAPT_PYTHONS = ["3.8", "3.11"]

LINTERS = ["mypy==2.4.*", "ruff==0.17.*"]
TEST_TOOLS = ["pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist"]
# Core's tests mostly wait for small processes of their own. The others start two to four ranks each, that
# import torch: more tests at a time than cores, and they run into each other's time limits.
CORE_WORKERS = min(8, 2 * (os.cpu_count() or 1))
RANK_WORKERS = min(8, os.cpu_count() or 1)
# A CI machine may be busy with other things for a minute. What needed a second try is listed by name.
RERUNS = ["--reruns", "2"] if "CI" in os.environ else []

# setuptools: releases before 8.1 import pkg_resources, which later ones no longer carry.
LIVE_REQUIREMENTS = [
    "torch==" + RELEASES["TORCH"],
    "numpy==1.26.4",
    "opencv-python-headless==4.11.0.86",
    "setuptools==80.9.0",
    "cloudpickle",
    "pandas",
    "pillow",
    "polars",
    "psutil",
    "py-cpuinfo",
    "pyyaml",
    "requests",
    "scipy",
    "seaborn",
    "tqdm",
]
LIVE_REQUIREMENTS += RELEASES["OPENMMLAB_REQUIREMENTS"]
# For 8.0.40 alone.
LIVE_REQUIREMENTS += ["hydra-core", "ipython", "sentry-sdk", "tensorboard"]
# Each of these asks pip for a torch or an OpenCV that is not the one above.
LIVE_WITHOUT_DEPENDENCIES = [
    "torchvision==" + RELEASES["TORCHVISION"],
    "hub-sdk==0.0.8",
    "thop",
    "ultralytics-thop",
]

# torch 1.12.1 carries the CUDA libraries it needs.
LEGACY_REQUIREMENTS = ["numpy==1.23.5", "typing_extensions==4.13.2", "cloudpickle"]
LEGACY_WITHOUT_DEPENDENCIES = ["torch==1.12.1"]

# No exact versions: any Python will do, and each gets the newest torch made for it.
DEMO_REQUIREMENTS = [
    "torch<=" + RELEASES["TORCH"],
    "torchvision<=" + RELEASES["TORCHVISION"],
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
DEMO_WITHOUT_DEPENDENCIES = ["ultralytics==" + RELEASES["NEWEST_ULTRALYTICS"], "ultralytics-thop"]

# Not virtualenv: its newest releases make no environment for Python 3.8.
nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_missing_interpreters = "CI" in os.environ
# Live comes last: it is the longest, and what it says is what people want to read at the end.
nox.options.sessions = ["lint", "core", "legacy", "live"]


def find_interpreters() -> None:
    """Let pyenv's interpreters be found: its commands answer only for versions that are switched on."""
    folder = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    newest: dict[str, tuple[int, ...]] = {}
    for version in folder.glob("3.*"):
        if re.fullmatch(r"3\.\d+\.\d+", version.name):
            minor, numbers = version.name.rpartition(".")[0], tuple(map(int, version.name.split(".")))
            newest[minor] = max(numbers, newest.get(minor, numbers))
    versions = [".".join(map(str, numbers)) for numbers in sorted(newest.values(), reverse=True)]
    if versions:
        chosen = os.environ.get("PYENV_VERSION", "").split(":")
        os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys([*filter(None, chosen), *versions]))
        # For those who use pyenv's interpreters without its commands on PATH.
        binaries = [str(folder / version / "bin") for version in versions]
        os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *binaries])


def prepare_environment() -> None:
    """Give uv what pip was told, and keep this shell's own settings away from the tests."""
    if os.environ.get("PIP_FIND_LINKS"):
        os.environ.setdefault("UV_FIND_LINKS", ",".join(os.environ["PIP_FIND_LINKS"].split()))
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    for name in list(os.environ):
        if name.startswith("DDP_PATCHES") or name == "PYTHONPATH":
            del os.environ[name]


find_interpreters()
prepare_environment()


def run_tests(session: nox.Session, *folders: str, workers: int = RANK_WORKERS, **environment: str) -> None:
    """Run pytest on the installed package. What follows `--` on nox's command line goes to pytest.

    Paths there take the place of `folders`.
    """
    chosen = [argument for argument in session.posargs if os.path.exists(argument.partition("::")[0])]
    options = ["-n", str(workers), "--dist", "worksteal", "--durations", "15", *RERUNS]
    session.run("pytest", *options, *([] if chosen else folders), *session.posargs, env=environment)


def install_layers(session: nox.Session) -> str:
    """Install every framework release into a folder of its own; return the folder that holds them all."""
    layers = pathlib.Path(session.cache_dir) / "layers" / str(session.python)
    contents = {"ultralytics/" + version: ["ultralytics==" + version] for version in RELEASES["ULTRALYTICS"]}
    for name, requirements in {**contents, **RELEASES["OPENMMLAB"], **RELEASES["YOLOV5"]}.items():
        layer = layers / name
        if not layer.exists():
            # Renamed when complete, so that an interrupted run is not taken for a finished one.
            partial = layer.with_name(layer.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            # mmcv's and mmdet3d's builds want the torch and the setuptools that are here.
            session.install("--no-deps", "--no-build-isolation", "--target", str(partial), *requirements)
            if name in RELEASES["UNPACKED"]:
                unpack_distribution(session, RELEASES["UNPACKED"][name], partial)
            partial.rename(layer)
    return str(layers.resolve())


def unpack_distribution(session: nox.Session, requirement: str, layer: pathlib.Path) -> None:
    """Put the packages of a source distribution and its metadata into a layer, without building anything."""
    folder = pathlib.Path(session.create_tmp())
    shutil.rmtree(folder / "sdist", ignore_errors=True)
    session.install("pip")  # uv does not download
    options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder / "sdist")]
    session.run("python", "-m", "pip", "--quiet", "download", *options, requirement)
    (archive,) = (folder / "sdist").iterdir()
    shutil.unpack_archive(archive, folder / "sdist")
    (source,) = filter(pathlib.Path.is_dir, (folder / "sdist").iterdir())
    metadata = layer / (source.name + ".dist-info")
    metadata.mkdir()
    shutil.move(str(source / "PKG-INFO"), str(metadata / "METADATA"))
    packages = [path.parent for path in source.glob("*/__init__.py")]
    (metadata / "top_level.txt").write_text("".join(path.name + "\n" for path in packages))
    for package in packages:
        shutil.move(str(package), str(layer / package.name))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install(".", *LINTERS, "pytest")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(python=CORE_PYTHONS)
def core(session: nox.Session) -> None:
    """Run what needs no framework, and the engine again with the oldest wrapt allowed."""
    session.install(".", *TEST_TOOLS)
    run_tests(session, "tests/core", workers=CORE_WORKERS)
    if session.python in OLDEST_WRAPT_PYTHONS:
        session.install(OLDEST_WRAPT)
        engine = sorted(map(str, pathlib.Path("tests/core").glob("test_engine_*.py")))
        run_tests(session, *engine, workers=CORE_WORKERS)


@nox.session(python=LEGACY_PYTHON)
def legacy(session: nox.Session) -> None:
    """Run what needs torch and no framework, on an old torch."""
    session.install(".", *TEST_TOOLS, *LEGACY_REQUIREMENTS)
    session.install("--no-deps", *LEGACY_WITHOUT_DEPENDENCIES)
    run_tests(session, "tests/distributed")


@nox.session(python=LIVE_PYTHON)
def live(session: nox.Session) -> None:
    """Run the same on a current torch, and real trainings with the newest Ultralytics and its older forms."""
    session.install(".", *TEST_TOOLS, *LIVE_REQUIREMENTS)
    session.install("--no-deps", *LIVE_WITHOUT_DEPENDENCIES)
    run_tests(session, "tests/distributed", "tests/live", TEST_LAYERS=install_layers(session))


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
