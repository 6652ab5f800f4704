"""What happens when a Python starts with our bootstrap on PYTHONPATH (promises 7, 8 and 9 of the design).

Real interpreters throughout. Most tests give the bootstrap a package of three lines instead of ours, which
only notes that it was started: they guard the start-up file by itself. The last ones take the real package.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys

import pytest

from ddp_patches import propagation
from support import interpreters

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the layout of virtual environments is POSIX's")

# Prints what became of this process, and with an argument of what its child became.
REPORT = """
import json, os, subprocess, sys
try:
    import torch
except ImportError:
    pass
report = {
    "order": getattr(sys, "order", []),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "ours": sorted(name for name in sys.modules if name.split(".")[0] == "ddp_patches"),
    "path": sys.path,
    "torch": "torch" in sys.modules,
    "python_path": os.environ.get("PYTHONPATH"),
}
if sys.argv[1:] == ["child"]:
    child = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE)  # as Python 2 has it
    out = child.communicate()[0]
    report["child"] = json.loads(out.decode())
sys.stdout.write(json.dumps(report))
"""

NOTE = "import sys\nsys.order = getattr(sys, 'order', []) + [%r]\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with nothing installed, ours neither."""
    return interpreters.venv(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture
def layer(tmp_path):
    """A folder that is on nobody's path, with a package of ours that only notes its start."""
    package = tmp_path / "layer" / "ddp_patches"
    source = pathlib.Path(propagation.PACKAGE_DIRECTORY)
    (package / "bootstrap").mkdir(parents=True)
    for name in ("propagation.py", "bootstrap/sitecustomize.py"):
        shutil.copy(source / name, package / name)
    (package / "__init__.py").write_text("")
    (package / "_finder.py").write_text(
        "import sys\n"
        "def start():\n    sys.order = getattr(sys, 'order', []) + ['ours']\n    _leave()\n"
        "def take_over(name, path, target): start()\n"
        "def _leave(): sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'waits_for_torch')]\n"
    )
    return package


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program" / "report.py"
    path.parent.mkdir()
    path.write_text(REPORT)
    return path


@pytest.fixture
def user(tmp_path):
    """A folder of the user's own, behind ours on PYTHONPATH."""
    folder = tmp_path / "user"
    folder.mkdir()
    return folder


def armed(python, package, *behind, **variables):
    """The environment that the package in ``package`` gives to children of ``python``."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from ddp_patches import propagation;"
        "environ = json.loads(sys.stdin.read()); propagation.arm(environ); print(json.dumps(environ))"
    )
    environ = interpreters.plain_environment(**variables)
    if behind:
        environ["PYTHONPATH"] = os.pathsep.join(map(str, behind))
    made = interpreters.run(
        [python, "-c", code, package.parent], interpreters.plain_environment(), stdin=json.dumps(environ)
    )
    assert made.code == 0, made.err
    return json.loads(made.out)


def report(command, environ, **keywords):
    finished = interpreters.run(command, environ, **keywords)
    assert finished.code == 0, finished.err
    assert finished.err == ""
    return json.loads(finished.out)


def write_fake_torch(folder):
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("__version__ = '2.13.0'\n")


# --- the user's own sitecustomize comes first -----------------------------------------------------------


def as_module(user):
    (user / "sitecustomize.py").write_text(NOTE % "user")


def as_package(user):
    (user / "sitecustomize").mkdir()
    (user / "sitecustomize" / "part.py").write_text(NOTE % "user")
    (user / "sitecustomize" / "__init__.py").write_text("from . import part\n")


def importing_torch(user):
    write_fake_torch(user)
    (user / "sitecustomize.py").write_text("import torch\n" + NOTE % "user")


def putting_a_finder_first(user):
    (user / "sitecustomize.py").write_text(
        NOTE % "user" + "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None): return None\n"
        "sys.meta_path.insert(0, Finder())\n"
    )


@pytest.mark.parametrize("form", [as_module, as_package, importing_torch, putting_a_finder_first])
def test_the_users_own_runs_once_and_first_in_child_and_grandchild(python, layer, user, program, form):
    form(user)
    environ = armed(python, layer, user)
    child = report([python, program, "child"], environ)
    for seen in (child, child["child"]):
        assert seen["order"] == ["user", "ours"]
        assert seen["sitecustomize"].startswith(str(user))
        assert seen["torch"] == (form is importing_torch)
        assert seen["python_path"] == environ["PYTHONPATH"]


def test_the_users_own_in_site_packages(tmp_path, layer, program):
    python = interpreters.venv(tmp_path / "venv")
    as_module(interpreters.site_packages(tmp_path / "venv"))
    assert report([python, program], armed(python, layer))["order"] == ["user", "ours"]


def test_the_users_own_from_a_finder(tmp_path, layer, program):
    """An editable install serves modules from a finder that a .pth file puts on sys.meta_path."""
    python = interpreters.venv(tmp_path / "venv")
    packages = interpreters.site_packages(tmp_path / "venv")
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(NOTE % "user")
    (packages / "hook.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sitecustomize':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(elsewhere)!r})\n"
        "sys.meta_path.append(Finder())\n"
    )
    (packages / "hook.pth").write_text("import hook\n")
    assert report([python, program], armed(python, layer))["order"] == ["user", "ours"]


def test_another_tool_that_chains_as_we_do(python, layer, user, tmp_path, program):
    """Tracers bring a sitecustomize as well: whoever is first, each of the three runs once."""
    as_module(user)
    tool = tmp_path / "tool"
    tool.mkdir()
    (tool / "sitecustomize.py").write_text(
        NOTE % "tool"
        + "import os\nsys.path.remove(os.path.dirname(os.path.abspath(__file__)))\n"
        + "_mine = sys.modules.pop('sitecustomize')\nimport sitecustomize\n"
    )
    environ = armed(python, layer, tool, user)
    assert report([python, program], environ)["order"] == ["tool", "user", "ours"]
    environ["PYTHONPATH"] = os.pathsep.join([str(tool), str(layer / "bootstrap"), str(user)])
    assert report([python, program], environ)["order"] == ["tool", "user", "ours"]


def test_ours_stays_in_place_where_the_user_has_none(python, layer, program):
    seen = report([python, program], armed(python, layer))
    assert seen["order"] == ["ours"]
    assert seen["sitecustomize"] == str(layer / "bootstrap" / "sitecustomize.py")


def test_usercustomize_is_left_alone(python, layer, user, program):
    """Virtual environments ignore the user's site folder, hence the base interpreter."""
    as_module(user)
    (user / "usercustomize.py").write_text(NOTE % "usercustomize")
    base = os.path.realpath(python)
    seen = report([base, program], armed(base, layer, user))
    assert seen["order"] == ["user", "usercustomize", "ours"]


@pytest.mark.parametrize(
    "statement",
    ["raise ValueError('mine')", "import no_such_module", "raise ImportError('mine')", "broken syntax here"],
)
def test_a_failing_sitecustomize_shows_pythons_message_and_ours_starts(
    python, layer, user, program, statement
):
    (user / "sitecustomize.py").write_text(NOTE % "user" + statement + "\n")
    environ = armed(python, layer, user)
    with_ours = interpreters.run([python, program, "child"], environ)
    alone = interpreters.run([python, program, "child"], interpreters.plain_environment(PYTHONPATH=str(user)))
    assert "Error in sitecustomize" in alone.err
    assert with_ours.err == alone.err
    seen = json.loads(with_ours.out)
    for each in (seen, seen["child"]):
        assert each["order"] == (["ours"] if "syntax" in statement else ["user", "ours"])
        assert each["sitecustomize"] is None


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_a_sitecustomize_that_ends_the_process_still_does(python, layer, user, program, statement):
    (user / "sitecustomize.py").write_text(statement + "\n")
    with_ours = interpreters.run([python, program], armed(python, layer, user))
    alone = interpreters.run([python, program], interpreters.plain_environment(PYTHONPATH=str(user)))
    assert with_ours.code == alone.code != 0
    assert with_ours.out == alone.out == ""


# --- only the right children ----------------------------------------------------------------------------


def test_another_installation_is_left_alone_but_its_sitecustomize_runs(
    python, layer, user, tmp_path, program
):
    as_module(user)
    other = interpreters.venv(tmp_path / "other")
    seen = report([other, program, "child"], armed(python, layer, user))
    for each in (seen, seen["child"]):
        assert each["order"] == ["user"]
        assert each["ours"] == []


def test_one_installation_under_two_names_is_one(tmp_path, layer, program):
    """Homes on clusters are links, and the launcher may use the other spelling."""
    python = interpreters.venv(tmp_path / "venv")
    (tmp_path / "link").symlink_to(tmp_path / "venv")
    linked = tmp_path / "link" / "bin" / "python"
    assert report([linked, program], armed(python, layer))["order"] == ["ours"]
    assert report([python, program], armed(linked, layer))["order"] == ["ours"]


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.13"])
def test_another_version_is_left_alone_but_its_sitecustomize_runs(python, layer, user, program, version):
    """Also where the marker seems to fit: with an old Python the file compiles, chains, and does no more."""
    other = interpreters.find(version)
    if other is None:
        pytest.skip(f"no Python {version} on this machine")
    if version == "%d.%d" % sys.version_info[:2]:
        pytest.skip("this is the same version")
    as_module(user)
    environ = armed(python, layer, user, PYTHONDONTWRITEBYTECODE="1")
    seen = report([other, program, "child"], environ)
    for each in (seen, seen["child"]):
        assert each["order"] == ["user"]
        assert each["ours"] == []
    if version in ("2.7", "3.6"):
        prefix = interpreters.run([other, "-c", "import sys; sys.stdout.write(sys.prefix)"], environ).out
        environ["DDP_PATCHES_ARMED"] = f"{version}|{os.path.realpath(prefix)}|{layer}"
        assert report([other, program], environ)["ours"] == []


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_a_failing_sitecustomize_on_an_old_python(python, layer, user, program, version):
    other = interpreters.find(version)
    if other is None:
        pytest.skip(f"no Python {version} on this machine")
    (user / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    environ = armed(python, layer, user, PYTHONDONTWRITEBYTECODE="1")
    finished = interpreters.run([other, program], environ)
    alone = interpreters.run([other, program], interpreters.plain_environment(PYTHONPATH=str(user)))
    assert finished.code == 0
    # Python 2 prints a traceback, in which our frames are seen.
    assert finished.err.splitlines()[-1:] == alone.err.splitlines()[-1:] != []


@pytest.mark.parametrize("word", ["0", " Off "])
def test_switched_off_means_nothing_of_ours_is_loaded(python, layer, user, program, word):
    as_module(user)
    seen = report([python, program], armed(python, layer, user, DDP_PATCHES=word))
    assert seen["order"] == ["user"]
    assert seen["ours"] == []


def test_propagate_off_ends_with_this_process(python, layer, user, program):
    as_module(user)
    seen = report([python, program, "child"], armed(python, layer, user, DDP_PATCHES_PROPAGATE="off"))
    assert seen["order"] == ["user", "ours"]
    assert seen["child"]["order"] == ["user"]
    assert seen["python_path"] == str(user)


# --- harmless, and out of the way -----------------------------------------------------------------------


def test_no_folder_of_ours_is_on_the_childs_path(python, layer, user, program):
    environ = armed(python, layer, user)
    seen = report([python, program], environ)
    assert [entry for entry in seen["path"] if entry.startswith(str(layer.parent))] == []
    bare = report([python, program], interpreters.plain_environment(PYTHONPATH=str(user)))
    assert seen["path"] == bare["path"]


def test_what_we_need_is_found_beside_us_and_nothing_else_is(python, layer):
    """`pip install --target`: the parent had the folder on sys.path by its own doing, the child has not."""
    for name in ("wrapt", "packaging", "neighbour"):
        (layer.parent / f"{name}.py").write_text("")
    code = "import ddp_patches, wrapt, packaging; print(wrapt.__file__, packaging.__file__)\nimport neighbour"
    finished = interpreters.run([python, "-c", code], armed(python, layer))
    assert finished.out.split() == [str(layer.parent / "wrapt.py"), str(layer.parent / "packaging.py")]
    assert "No module named 'neighbour'" in finished.err


def test_a_copy_that_is_installed_wins_over_ours(tmp_path, layer):
    python = interpreters.venv(tmp_path / "venv")
    packages = interpreters.site_packages(tmp_path / "venv")
    for folder in (layer.parent, packages):
        (folder / "wrapt.py").write_text("")
    finished = interpreters.run(
        [python, "-c", "import ddp_patches, wrapt; print(wrapt.__file__)"], armed(python, layer)
    )
    assert finished.out.strip() == str(packages / "wrapt.py")


def test_the_package_is_the_parents_even_if_another_is_installed(tmp_path, layer, program):
    """A source checkout on the launcher's sys.path, and a release in site-packages: one job, one version."""
    python = interpreters.venv(tmp_path / "venv")
    shutil.copytree(layer, interpreters.site_packages(tmp_path / "venv") / "ddp_patches")
    (layer / "_finder.py").write_text("import sys\ndef take_over(*asked): sys.order = ['the checkout']\n")
    assert report([python, program], armed(python, layer))["order"] == ["the checkout"]


@pytest.mark.parametrize(
    "damage", ["raise ValueError('broken')", "import no_such_module", "syntax error here"]
)
def test_a_broken_package_costs_the_child_nothing(python, layer, user, program, damage):
    as_module(user)
    (layer / "_finder.py").write_text(damage + "\n")
    environ = armed(python, layer, user)
    assert report([python, program], environ)["order"] == ["user"]
    traced = interpreters.run([python, program], {**environ, "DDP_PATCHES_TRACE": "1"})
    assert traced.err.count("could not start") == 1


def test_a_package_that_is_gone_costs_the_child_nothing(python, layer, user, program):
    """Uninstalled while a shell still has the variables."""
    as_module(user)
    environ = armed(python, layer, user)
    bootstrap = layer.parent.parent / "bootstrap"
    shutil.move(str(layer / "bootstrap"), str(bootstrap))
    shutil.rmtree(layer)
    assert report([python, program], environ)["order"] == ["user"]
    environ["PYTHONPATH"] = os.pathsep.join([str(bootstrap), str(user)])
    assert report([python, program], environ)["order"] == ["user"]


def test_the_trace_names_process_and_reason(python, layer, tmp_path, program):
    other = interpreters.venv(tmp_path / "other")
    finished = interpreters.run([other, program], armed(python, layer, DDP_PATCHES_TRACE="1"))
    assert finished.err.startswith("ddp_patches[")
    assert "left alone" in finished.err


# --- every way of starting a Python ---------------------------------------------------------------------


def test_programs_without_a_main_file(python, layer):
    environ = armed(python, layer)
    code = "import sys, importlib.util; importlib.util.find_spec('torch'); print(sys.order)\n"
    for command, stdin in (
        ([python, "-c", code], ""),
        ([python], code),
        ([python, "-"], code),
        ([python, "-i", "-q"], code),
    ):
        finished = interpreters.run(command, environ, stdin=stdin)
        assert "['ours']" in finished.out, (command, finished)


def test_python_minus_m(python, layer, tmp_path):
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text(
        "import sys, importlib.util; importlib.util.find_spec('torch')\nprint(sys.order, sys.argv[1:])"
    )
    finished = interpreters.run([python, "-m", "tool", "a"], armed(python, layer), folder=tmp_path)
    assert finished.out.strip() == "['ours'] ['a']"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_of_multiprocessing(python, layer, tmp_path, method):
    """Started by a process that was armed itself; spawn replaces sys.path in the child after its start."""
    path = tmp_path / "pool.py"
    path.write_text(
        "import importlib.util, multiprocessing, sys\n"
        "def order(_):\n    importlib.util.find_spec('torch')\n    return sys.order\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool: print(pool.map(order, [0]))\n"
    )
    finished = interpreters.run([python, path], armed(python, layer))
    assert finished.out.strip() == "[['ours']]", finished.err


@pytest.mark.parametrize("switch", ["-E", "-I", "-S"])
def test_switches_that_cannot_be_reached(python, layer, switch):
    """Documented in `ddp-patches run --help`; this fails the day that Python changes."""
    code = "import sys, importlib.util; importlib.util.find_spec('torch'); print(hasattr(sys, 'order'))"
    assert interpreters.run([python, switch, "-c", code], armed(python, layer)).out.strip() == "False"


# --- the real package -----------------------------------------------------------------------------------


def test_a_python_without_torch_loads_only_the_standard_library(python, tmp_path):
    """Promise 7, by the names in sys.modules: only our start-up file itself."""
    code = "import json, os, sys\nprint(json.dumps(list(sys.modules)))\n"
    package = interpreters.PACKAGE_PARENT / "ddp_patches"
    bare = report([python, "-c", code], interpreters.plain_environment())
    ours = report([python, "-c", code], armed(python, package))
    assert set(ours) - set(bare) == {"sitecustomize"}


@pytest.mark.parametrize("form", [importing_torch, putting_a_finder_first, as_module])
def test_the_engine_starts_when_torch_is_imported(user, form):
    """With the real package: also if the user's file imports torch itself or puts a finder before ours."""
    form(user)
    if form is not importing_torch:
        write_fake_torch(user)
    code = (
        "import sys, torch; print(sys.order, torch.__version__, 'ddp_patches.engine.control' in sys.modules)"
    )
    environ = armed(sys.executable, interpreters.PACKAGE_PARENT / "ddp_patches", user)
    finished = interpreters.run([sys.executable, "-c", code], environ)
    assert finished.out.strip() == "['user'] 2.13.0 True", finished.err


def test_what_waits_is_replaced_by_any_door_and_taken_away_by_disable(tmp_path, user):
    """One finder at a time, whoever came first; after disable() an import of torch starts nothing."""
    write_fake_torch(user)
    (user / "waiting.py").write_text(
        "import sys\n"
        "def names(): return [type(f).__module__ for f in sys.meta_path if hasattr(f, 'waits_for_torch')]\n"
    )
    code = (
        "import waiting; print(waiting.names())\n"
        "import ddp_patches; print(ddp_patches.status().patches[0].reason)\n"
        "import ddp_patches.auto; print(waiting.names())\n"
        "ddp_patches.disable(); print(waiting.names())\n"
        "import torch, sys; print('ddp_patches.engine.control' in sys.modules)\n"
    )
    environ = armed(sys.executable, interpreters.PACKAGE_PARENT / "ddp_patches", user)
    finished = interpreters.run([sys.executable, "-c", code], environ)
    assert finished.out.splitlines() == [
        "['sitecustomize']",
        "torch is not imported yet",
        "['ddp_patches._finder']",
        "[]",
        "False",
    ], finished.err
    early = "import ddp_patches, waiting; ddp_patches.disable(); print(waiting.names())"
    assert interpreters.run([sys.executable, "-c", early], environ).out.strip() == "[]"
