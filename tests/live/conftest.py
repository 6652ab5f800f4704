"""Which release a test is about: the matrix has a cell for each, and the everyday run leaves some out."""

from __future__ import annotations

import pytest

from support import layers
from support.releases import RELEASES

# Parameters that name a release; that of the last one is a version of Ultralytics.
_PARAMETERS = ("release", "layer", "stack", "version")


def pytest_collection_modifyitems(items):
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        named = [mark.kwargs["name"] for mark in item.iter_markers("release")]
        for parameter in set(_PARAMETERS) & set(parameters):
            value = parameters[parameter]
            named.append("ultralytics/" + value if parameter == "version" else value)
            item.add_marker(pytest.mark.release(name=named[-1]))
        unknown = set(named) - set(RELEASES)
        if unknown:
            raise pytest.UsageError("%s: no release of matrix/cells.json: %s" % (item.nodeid, unknown))
        if not all(RELEASES[name].get("everyday") for name in named):
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(autouse=True)
def _releases_of_this_test(request, monkeypatch):
    """A test that used another release than it is marked with would not run in that release's cell."""
    named = {mark.kwargs["name"] for mark in request.node.iter_markers("release")}
    monkeypatch.setattr(layers, "declared", named)
