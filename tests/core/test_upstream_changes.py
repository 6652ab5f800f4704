"""Whatever upstream does to a target in a release nobody has run: a right verdict, and upstream's code stays.

Guards promises 1 and 3: the same verdict and reason before the import, from the files alone, and
after it; nothing of ours in the place of what does not fit.
"""

from __future__ import annotations

import json
import textwrap

import pytest

from ddp_patches.engine import fingerprint
from fingerprints import packing
from support import made_up

TARGETS = ("framework.work|framework.older_work:work", "framework.work:Worker.work")
UPSTREAM = textwrap.dedent(made_up.PACKAGES["framework/work.py"])
HEAD, _, REST = UPSTREAM.partition("def work(amount):")
KEPT = "def work(amount):" + REST

PROGRAM = """
    import importlib, json, os, sys
    from ddp_patches.engine import known
    known.PATH = os.environ["KNOWN"]
    import framework_patches
    from ddp_patches import overview
    before = [row for row in overview.before_a_run(os.environ).patches if row.package == "framework"]
    assert "framework" not in sys.modules and "torch" not in sys.modules

    import ddp_patches
    ddp_patches.enable(propagate=False)
    import torch, framework
    for name in ("work", "older_work", "work_of_tomorrow"):
        try:
            importlib.import_module("framework." + name)
        except ImportError:
            pass
    after = [row for row in ddp_patches.status().patches if row.package == "framework"]
    modules = [module for name, module in sys.modules.items() if name.startswith("framework.work")]
    assert sys.modules["framework.work_of_tomorrow"] in modules
    held = [(name, value) for module in modules for name, value in vars(module).items()]
    ours = sorted(name for name, value in held if hasattr(value, "__ddp_patches__"))
    ddp_patches.disable()
    found = [[[row.state, row.verdict, row.reason] for row in rows] for rows in (before, after)]
    print(json.dumps([*found, ours]))
"""


def verdicts(folder, work, version="1.3.0", tested=(), looked_at=("1.1.0", "1.2.0"), fixed_in="", bounds=""):
    """What is said of the function `work` before and after the import, and what of ours is in the module.

    None for `work`: there is only `framework.work_of_tomorrow`, which is as made up. So are the releases
    `looked_at`.
    `bounds`: of the variants, those of both targets.
    """
    release = {target: fingerprint.of_source(UPSTREAM, target.partition(":")[2]) for target in TARGETS}
    content = {"framework": packing.packed([(version, release) for version in looked_at])}
    (folder / "known.json").write_text(packing.as_text(content))
    said = "tested=%r, fixed_in=%r, summary=" % (tested, fixed_in)
    patches = made_up.PACKAGES["framework_patches.py"].replace("summary=", said)
    patches = patches.replace('("amount",))', '("amount",), versions=%r)' % bounds)
    made_up.write(folder, framework____init__="__version__ = %r\n" % version)
    files = {"framework/work.py": work or UPSTREAM, "framework/work_of_tomorrow.py": UPSTREAM}
    made_up.write_files(folder, {"framework_patches.py": patches, **files})
    if work is None:
        (folder / "framework" / "work.py").unlink()
    printed = made_up.lines(folder, PROGRAM, KNOWN=str(folder / "known.json"))
    before, after, ours = json.loads(printed[-1])
    return before[0], after[0], ours


NOT_RUN, SINCE = "not run by our tests on framework 1.3.0; the signature fits", "; since 1.2.0: "

CHANGES = {
    "deleted": (HEAD + "class" + REST.partition("class")[2], "absent", "framework.work has no work"),
    "renamed": (
        UPSTREAM.replace("def work(amount)", "def labour(amount)"),
        "absent",
        "framework.work has no work",
    ),
    "a required parameter": (
        UPSTREAM.replace("def work(amount)", "def work(amount, unit)"),
        "changed",
        "its signature (amount, unit) requires unit" + SINCE + "was (amount)",
    ),
    "a parameter renamed": (
        UPSTREAM.replace("def work(amount)", "def work(quantity)"),
        "changed",
        "its signature (quantity) has no amount" + SINCE + "was (amount)",
    ),
    "a class": (
        HEAD + "class work:\n    def __init__(self, amount): ...\n",
        "changed",
        "it is no function but a class" + SINCE + "was (amount)",
    ),
    "a coroutine": (
        HEAD + "async def work(amount):\n    return len(str(amount))\n",
        "changed",
        "it is a coroutine by now" + SINCE + "calls len str",
    ),
    "a decorated object": (
        "import functools\n" + HEAD + "@functools.lru_cache(maxsize=None)\n" + KEPT,
        "changed",
        "it is no plain function but of type _lru_cache_wrapper" + SINCE + "calls functools.lru_cache",
    ),
    "an instance of a class": (
        "class Retried:\n    def __init__(self, function): self.__wrapped__ = function\n"
        "    def __call__(self, *args): return self.__wrapped__(*args)\n" + HEAD + "@Retried\n" + KEPT,
        "changed",
        "it is no plain function but of type Retried" + SINCE + "other statements, the same calls",
    ),
    "an object of wrapt's": (
        "import wrapt\n@wrapt.decorator\ndef retried(wrapped, instance, args, keywords):\n"
        "    return wrapped(*args, **keywords)\n" + HEAD + "@retried\n" + KEPT,
        "changed",
        "it is no plain function but of type FunctionWrapper" + SINCE + "other statements, the same calls",
    ),
    "a function around a coroutine": (
        "import functools\ndef ran(function):\n    @functools.wraps(function)\n"
        "    def run(*args): return function(*args)\n    return run\n"
        + HEAD + "@ran\nasync " + KEPT,
        "changed",
        "it is a coroutine by now" + SINCE + "other statements, the same calls",
    ),
    "a generator": (
        UPSTREAM.replace('return "upstream did %s"', 'yield "upstream did %s"'),
        "changed",
        "it is a generator by now" + SINCE + "other statements, the same calls",
    ),
    "only by name": (
        UPSTREAM.replace("def work(amount)", "def work(*, amount)"),
        "changed",
        "its signature (*, amount) does not begin with amount" + SINCE + "was (amount)",
    ),
    "after another": (
        UPSTREAM.replace("def work(amount)", "def work(unit=None, amount=1)"),
        "changed",
        "its signature (unit=None, amount=1) does not begin with amount" + SINCE + "was (amount)",
    ),
    "only by position": (
        UPSTREAM.replace("def work(amount)", "def work(amount, /)"),
        "compatible",
        NOT_RUN + SINCE + "was (amount)",
    ),
    "a module of another name": (
        None,
        "absent",
        "there is no module framework.work; there is no module framework.older_work",
    ),
    "moved, and to be had from its old module": (
        "from .work_of_tomorrow import Worker, work\n",
        "compatible",
        NOT_RUN,
    ),
    "moved, and handed out by its old module's __getattr__": (
        "from . import work_of_tomorrow as now\ndef __getattr__(name):\n    return getattr(now, name)\n",
        "absent",
        "framework.work has no work",
    ),
    "only another body": (
        UPSTREAM.replace('return "upstream did %s" % amount', "return print(amount) or open(amount)"),
        "compatible",
        NOT_RUN + SINCE + "calls open print",
    ),
    "an optional parameter": (
        UPSTREAM.replace("def work(amount)", "def work(amount, unit=None)"),
        "compatible",
        NOT_RUN + SINCE + "was (amount)",
    ),
    "other words": (
        UPSTREAM.replace('upstream did', 'upstream has done'),
        "compatible",
        NOT_RUN + SINCE + "other statements, the same calls",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_target_gets_its_verdict_before_and_after_the_import(tmp_path, change):
    work, verdict, reason = CHANGES[change]
    before, after, ours = verdicts(tmp_path, work)
    assert after[1:] == [verdict, reason]
    assert before[1] == verdict
    # Before the import all homes of the target have been looked for.
    assert before[2].partition("; there is no")[0] == reason.partition("; there is no")[0]
    fits = verdict == "compatible"
    assert before[0] == ("waiting" if fits else "skipped")
    # A module that nobody has imported is awaited all the same.
    assert after[0] == ("applied" if fits else "waiting" if work is None else "skipped")
    in_both = work is not None and "import Worker, work" in work
    assert ours == (["work"] * (2 if in_both else 1) if fits else [])


ODD_VERSIONS = ["1.3.0", "1.3.0.dev1", "2.15.0a0+git3f2a1c", "1.2.0-our-fork", "0.0.1", "main", ""]


@pytest.mark.parametrize("version", ODD_VERSIONS)
def test_unchanged_code_is_the_same_in_every_version(tmp_path, version):
    """A release newer than all known ones, a development build, a fork, a checkout: the code counts."""
    before, after, ours = verdicts(tmp_path, UPSTREAM, version, tested=("1.2.0",))
    shown = version or "of unknown version"
    reason = "not run by our tests on framework %s; its code is that of 1.2.0, on which they ran it" % shown
    assert before == ["waiting", "same", reason]
    assert after == ["applied", "same", reason]
    assert ours == ["work"]


@pytest.mark.parametrize("version", ODD_VERSIONS)
def test_changed_code_is_compatible_in_every_version(tmp_path, version):
    work = UPSTREAM.replace("upstream did", "upstream has done")
    before, after, _ = verdicts(tmp_path, work, version, tested=("1.2.0",))
    assert (before[1], after[1]) == ("compatible", "compatible")
    assert before[2] == after[2]


def test_an_edited_file_is_not_called_tested(tmp_path):
    """People cure hangs by editing site-packages; what our tests ran is the release as it was published."""
    work = UPSTREAM.replace("upstream did", "upstream has done")
    before, after, ours = verdicts(tmp_path, work, "1.2.0", tested=("1.2.0",))
    reason = "this is not the code that framework 1.2.0 was published with; the signature fits"
    assert before == ["waiting", "compatible", reason]
    assert after == ["applied", "compatible", reason]
    assert ours == ["work"]


def test_the_release_as_it_was_published_is_tested(tmp_path):
    before, after, _ = verdicts(tmp_path, UPSTREAM, "1.2.0", tested=("1.2.0",))
    assert before == ["waiting", "tested", "run by our tests on framework 1.2.0"]
    assert after == ["applied", "tested", "run by our tests on framework 1.2.0"]


SHOWN = """
    import framework_patches, ddp_patches
    ddp_patches.enable(propagate=False)
    import torch, framework.work
    print(framework.work.work(3), framework.work.Worker().work(3))
    print(ddp_patches.status())
"""


def test_a_release_in_which_the_fault_is_cured_is_left_alone_and_status_says_so(tmp_path):
    """At run time such a patch is `fixed upstream`, although it would fit."""
    before, after, ours = verdicts(tmp_path, UPSTREAM, "1.3.0", tested=("1.2.0",), fixed_in=">=1.3")
    reason = "upstream 1.3.0 no longer needs it (>=1.3)"
    assert before == after == ["skipped", "fixed upstream", reason]
    assert ours == []
    worked, *shown = made_up.lines(tmp_path, SHOWN)
    assert worked == "upstream did 3 upstream's worker did 3"
    (line, *_) = [line for line in shown if "framework.work" in line]
    assert "fixed upstream" in line and reason in " ".join(" ".join(shown).split())


def test_the_last_release_with_the_fault_still_has_the_patch(tmp_path):
    before, after, ours = verdicts(tmp_path, UPSTREAM, "1.2.0", tested=("1.2.0",), fixed_in=">=1.3")
    assert (before[:2], after[:2], ours) == (["waiting", "tested"], ["applied", "tested"], ["work"])


BOUNDED = [
    ("1.2.0-our-fork", "<1.3", "same"),
    ("1.2.0-our-fork", ">=1.3", "absent"),
    ("1.3.0rc1-12-gabcdef", "<1.3", "absent"),
    ("1.3.0rc1-12-gabcdef", ">=1.3", "compatible"),  # our tests ran 1.2.0 alone, with another variant
    ("main", "<1.3", "absent"),
    ("main", ">=1.3", "compatible"),
]


@pytest.mark.parametrize("version, bounds, verdict", BOUNDED)
def test_an_odd_version_has_the_variants_of_the_release_it_begins_with(tmp_path, version, bounds, verdict):
    before, after, ours = verdicts(tmp_path, UPSTREAM, version, tested=("1.2.0",), bounds=bounds)
    assert (before[1], after[1]) == (verdict, verdict)
    if verdict == "absent":
        reason = "there is no variant for framework %s" % version
        assert (before[0], before[2], after[0], after[2], ours) == ("skipped", reason, "skipped", reason, [])
    else:
        assert (before[0], after[0], ours) == ("waiting", "applied", ["work"])


def test_a_fork_of_the_last_release_with_the_fault_still_has_the_patch(tmp_path):
    before, after, ours = verdicts(tmp_path, UPSTREAM, "1.2.0-our-fork", tested=("1.2.0",), fixed_in=">=1.3")
    assert (before[:2], after[:2], ours) == (["waiting", "same"], ["applied", "same"], ["work"])


TRACER = """
    import wrapt

    def wrapper(wrapped, instance, args, keywords):
        return "traced, " + wrapped(*args, **keywords)

    def trace(module):
        wrapt.wrap_function_wrapper(module, "work", wrapper)
        wrapt.wrap_function_wrapper(module, "Worker.work", wrapper)
"""


def test_what_a_tracer_has_wrapped_is_still_upstreams_function(tmp_path):
    made_up.write_files(tmp_path, {"tracer.py": TRACER})
    work = UPSTREAM + "\nimport sys, tracer\ntracer.trace(sys.modules[__name__])\n"
    before, after, ours = verdicts(tmp_path, work, tested=("1.2.0",))
    assert (before[:2], after[:2], ours) == (["waiting", "same"], ["applied", "same"], ["work"])
    worked, *_ = made_up.lines(tmp_path, SHOWN)
    assert worked == "patched, traced, upstream did 3 patched, traced, upstream's worker did 3"
