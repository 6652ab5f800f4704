"""The decisions of ``ultralytics.launch``: what the workers are given, and what is said before they start."""

from __future__ import annotations

import os

import pytest

from ddp_patches import _finder, propagation, settings
from ddp_patches.patches.ultralytics import launch
from ddp_patches.patches.ultralytics.launch import cloudpickle_obstacle, settings_for_workers


def workers_settings(environ, keywords, variables):
    """Settings as a worker reads them from what the launch hands on."""
    given = {settings.variable(name): text for name, text in keywords.items()}
    return settings.load({**environ, **variables, **given, "DDP_PATCHES_KEYWORDS": ",".join(keywords)})


@pytest.mark.parametrize("cleaned", [False, True])
def test_workers_come_to_the_settings_of_the_parent(cleaned):
    """Also when the user's code has removed every variable since: all ranks must have the same settings."""
    environ = {"DDP_PATCHES_ZERO_FIRST_TIMEOUT": "48h", "DDP_PATCHES_SKIP": "torch.teardown, yolov5.*"}
    parent = settings.load(environ, timeout="90m", strict=True, nccl_blocking_wait=0)
    environ = {} if cleaned else environ
    keywords, variables = settings_for_workers(parent, environ)
    workers = workers_settings(environ, keywords, variables)
    assert workers.settings == parent.settings
    assert workers.sources == parent.sources
    assert not workers.problems


def test_a_variable_that_the_user_has_changed_since_is_left_alone():
    parent = settings.load({"DDP_PATCHES_TIMEOUT": "1h"})
    assert settings_for_workers(parent, {"DDP_PATCHES_TIMEOUT": "3h"}) == ({}, {})


def test_defaults_are_not_handed_on():
    assert settings_for_workers(settings.load({}), {}) == ({}, {})


def test_missing_cloudpickle_is_said_only_where_it_is_needed():
    assert cloudpickle_obstacle(needed=False, installed=False, can_install=False) == ""
    assert cloudpickle_obstacle(needed=True, installed=True, can_install=False) == ""
    assert "pip install cloudpickle" in cloudpickle_obstacle(needed=True, installed=False, can_install=False)
    assert "runs pip" in cloudpickle_obstacle(needed=True, installed=False, can_install=True)


@pytest.fixture
def own_environment(monkeypatch):
    """This process's environment and settings, as they were when the test is over."""
    monkeypatch.setattr(os, "environ", {"PYTHONPATH": "/my/code"})
    yield os.environ
    _finder.disarm_children()
    settings.activate(None)


@pytest.mark.parametrize(
    ("keywords", "variables", "armed"),
    [
        ({}, {}, True),
        ({"propagate": False}, {}, False),
        ({}, {"DDP_PATCHES_PROPAGATE": "off"}, False),
        ({}, {"DDP_PATCHES": "0"}, False),
    ],
)
def test_workers_are_armed_unless_the_user_said_no(own_environment, keywords, variables, armed):
    own_environment.update(variables)
    settings.activate(settings.load(own_environment, timeout="3h", **keywords))
    launch._arm_workers()
    folders = own_environment["PYTHONPATH"].split(os.pathsep)
    assert folders == ([propagation.bootstrap_directory()] if armed else []) + ["/my/code"]
    assert own_environment.get("DDP_PATCHES_TIMEOUT") == ("10800.0" if armed else None)
