"""Settings: every bad value costs one line and stops nothing (issue: "bad and unknown settings")."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import re

import pytest

import ddp_patches
from ddp_patches import parsers, settings
from ddp_patches.settings import SettingError

FIELDS = [field.name for field in dataclasses.fields(settings.Settings)]


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("7200", 7200),
        ("90m", 5400),
        ("2h", 7200),
        ("1.5h", 5400),
        (".5m", 30),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("2d", 172800),
        (" 2H ", 7200),
        (30, 30),
        (0.25, 0.25),
        (datetime.timedelta(minutes=2), 120),
    ],
)
def test_durations(text, seconds):
    parsed = parsers.duration(text)
    assert parsed == seconds and type(parsed) is float


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "h",
        "2 hours",
        "1h30",
        "30 1h",
        "-5",
        "0",
        "0s",
        "1e3",
        "2h;",
        "1:30:00",
        "400d",
        "nan",
        "inf",
    ]
    + [
        0,
        -1,
        float("nan"),
        float("inf"),
        pytest.param(10**400, id="huge"),
        True,
        None,
        [7200],
        datetime.timedelta(0),
    ],
)
def test_what_is_no_duration(value):
    with pytest.raises(SettingError):
        parsers.duration(value)


@pytest.mark.parametrize(
    "seconds, text", [(7200, "2h"), (5400, "1h30m"), (45, "45s"), (1.5, "1.5s"), (3661, "1h1m1s"), (0, "0s")]
)
def test_durations_are_written_as_people_write_them(seconds, text):
    assert settings.format_duration(seconds) == text
    if seconds:
        assert parsers.duration(text) == seconds


def test_defaults():
    loaded = settings.load({})
    assert loaded.settings == settings.Settings()
    assert (set(loaded.sources.values()), loaded.problems) == ({"default"}, ())


def test_the_environment_and_keywords_that_win_over_it():
    environ = {"DDP_PATCHES_TIMEOUT": "4h", "DDP_PATCHES_SKIP": "a.b, c.*", "DDP_PATCHES_LOG_LEVEL": ""}
    loaded = settings.load(environ, timeout="90m", strict=True)
    assert (loaded.settings.timeout, loaded.settings.skip, loaded.settings.strict) == (
        5400,
        ("a.b", "c.*"),
        True,
    )
    sources = {name: loaded.sources[name] for name in ("timeout", "skip", "strict", "log_level")}
    assert sources == {
        "timeout": "keyword",
        "skip": "environment",
        "strict": "keyword",
        "log_level": "default",
    }


@pytest.mark.parametrize("keep", ["keep", " KEEP", None])
def test_the_callers_timeout_may_be_kept(keep):
    assert settings.load({}, timeout=keep).settings.timeout is None


@pytest.mark.parametrize(
    "word, value", [("1", True), ("ON", True), ("yes", True), ("0", False), ("False", False)]
)
def test_switches(word, value):
    assert settings.load({"DDP_PATCHES_PROPAGATE": word}).settings.propagate is value


BAD = {
    "timeout": "soon",
    "nccl_blocking_wait": "maybe",
    "zero_first_timeout": "keep",
    "resample": "everywhere",
    "max_resamples": "0",
    "exit_timeout": "0",
    "exit_wait": "a while",
    "propagate": "perhaps",
    "strict": "very",
    "log_level": "loud",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_one_line_and_the_default(name):
    variable = settings.variable(name)
    loaded = settings.load({variable: BAD[name]})
    default = getattr(settings.Settings(), name)
    assert getattr(loaded.settings, name) == default and loaded.sources[name] == "default"
    (line,) = loaded.problems
    assert line.startswith("%s='%s' " % (variable, BAD[name])) and "\n" not in line
    assert line.endswith("; %s is used instead." % settings.format_value(name, default))


@pytest.mark.parametrize(
    "keywords",
    [
        {"skip": 5},
        {"skip": [5]},
        {"skip": None},
        {"timeout": 10**400},
        {"timeout": object()},
        {"propagate": 2},
        {"strict": []},
        {"log_level": None},
        {"nccl_blocking_wait": 7},
        {"max_resamples": True},
        {"max_resamples": None},
        {"max_resamples": 2.5},
    ],
    ids=lambda keywords: next(iter(keywords)),
)
def test_a_bad_keyword_of_any_type_is_one_line(keywords):
    assert len(settings.load({}, **keywords).problems) == 1


def test_a_bad_keyword_leaves_the_environments_value():
    loaded = settings.load({"DDP_PATCHES_TIMEOUT": "4h"}, timeout="soon")
    assert (loaded.settings.timeout, loaded.sources["timeout"]) == (14400, "environment")
    assert loaded.problems[0].endswith("4h is used instead.")


@pytest.mark.parametrize(
    "name, nearest",
    [("TIMOUT", "DDP_PATCHES_TIMEOUT"), ("ZEROFIRST_TIMEOUT", "DDP_PATCHES_ZERO_FIRST_TIMEOUT"), ("Q", None)],
)
def test_an_unknown_variable_is_one_line_with_the_nearest_name(name, nearest):
    (line,) = settings.load({"DDP_PATCHES_" + name: "1"}).problems
    hint = "did you mean %s?" % nearest if nearest else "there are DDP_PATCHES_ABORT_AFTER, "
    assert line.startswith("DDP_PATCHES_%s is not a setting; %s" % (name, hint))


def test_an_unknown_keyword_is_a_mistake_in_the_code():
    with pytest.raises(TypeError, match="no setting 'timout'; did you mean timeout"):
        settings.load({}, timout="2h")


@pytest.mark.parametrize(
    "environ, keywords",
    [
        ({"DDP_PATCHES_TIMEOUT": "soon", "DDP_PATCHES_STRICT": "1"}, {}),
        ({"DDP_PATCHES_TIMOUT": "2h", "DDP_PATCHES_STRICT": "1"}, {}),
        ({"DDP_PATCHES_TIMEOUT": "soon"}, {"strict": True}),
        ({}, {"timeout": "soon", "strict": True}),
    ],
)
def test_strict_raises(environ, keywords):
    with pytest.raises(SettingError, match=r"(?i)time?out"):
        settings.load(environ, **keywords)


def test_settings_that_a_parent_gave_by_keyword_are_called_so():
    environ = {
        "DDP_PATCHES_TIMEOUT": "4h",
        "DDP_PATCHES_SKIP": "a.b",
        "DDP_PATCHES_KEYWORDS": "timeout,,strict",
    }
    sources = settings.load(environ).sources
    assert (sources["timeout"], sources["skip"], sources["strict"]) == ("keyword", "environment", "default")


@pytest.mark.parametrize(
    "keywords",
    [
        {"timeout": None, "propagate": False, "strict": True, "skip": ["b.*", "a"], "log_level": "ERROR"},
        {"timeout": datetime.timedelta(days=300), "exit_timeout": 0.25, "run_dir": pathlib.Path("runs")},
        {"timeout": 1e6, "skip": "a b", "nccl_blocking_wait": 0, "zero_first_timeout": "1h30m"},
        {"max_resamples": 60000, "resample": "global"},
    ],
)
def test_children_read_from_variables_what_was_given_by_keyword(keywords):
    given = settings.load({}, **keywords)
    assert given.problems == ()
    environ = {settings.variable(name): settings.encode(value) for name, value in keywords.items()}
    assert settings.load(environ).settings == given.settings


def test_ranks_agree_where_it_matters():
    """The hash that ranks compare: over the fields that need agreement, whatever their spelling."""
    base = settings.load({}).settings.agreement_hash()
    assert re.fullmatch("[0-9a-f]{12}", base)
    for free in (
        {"run_dir": "none"},
        {"strict": True},
        {"exit_timeout": 3},
        {"propagate": False},
        {"log_level": "error"},
    ):
        assert settings.load({}, **free).settings.agreement_hash() == base
    for bound in (
        {"timeout": "3h"},
        {"zero_first_timeout": "1h"},
        {"skip": "a"},
        {"nccl_blocking_wait": "0"},
    ):
        assert settings.load({}, **bound).settings.agreement_hash() != base
    for one, other in [({"timeout": "2h"}, {"timeout": 7200}), ({"skip": "a,b"}, {"skip": ("b", "a", "b")})]:
        assert (
            settings.load({}, **one).settings.agreement_hash()
            == settings.load({}, **other).settings.agreement_hash()
        )


def test_the_table_has_a_row_for_each_field():
    rows = settings.fields_table()
    assert [row["name"] for row in rows] == FIELDS
    for row in rows:
        assert row["variable"] == "DDP_PATCHES_" + row["name"].upper()
        assert row["help"] and row["default"] and row["example"]
        loaded = settings.load({row["variable"]: row["example"]})
        assert loaded.problems == ()
        assert loaded.settings != settings.Settings()


def test_defaults_are_shown_as_they_are():
    for row, field in zip(settings.fields_table(), dataclasses.fields(settings.Settings)):
        if row["name"] != "run_dir":  # whose default depends on the machine
            assert settings.format_value(row["name"], field.default) in (row["default"], "24h")


def test_every_variable_of_ours_is_a_setting_or_internal():
    """What one of our processes sets for another must not be reported to the user as misspelt."""
    package = pathlib.Path(ddp_patches.__file__).parent
    named = set()
    for path in package.rglob("*.py"):
        named.update(re.findall(r"\bDDP_PATCHES_[A-Z][A-Z_]*\b", path.read_text(encoding="utf-8")))
    known = {settings.variable(name) for name in FIELDS} | settings.INTERNAL_VARIABLES
    assert named - known == set()


@pytest.mark.parametrize(
    "word, off", [("0", True), (" Off", True), ("no", True), ("1", False), ("", False), ("x", False)]
)
def test_the_switch(word, off):
    assert settings.is_off({"DDP_PATCHES": word}) is off
    assert settings.is_off({}) is False
