"""The releases with which our tests have passed: the data beside this module.

``passed.json`` is written by ``tests/matrix/passed.py`` from the outcomes of the matrix, and holds for each
package that the matrix installs the releases, oldest first, that may be called tested.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Dict, Optional, Tuple

PATH = os.path.join(os.path.dirname(__file__), "passed.json")


@functools.lru_cache(maxsize=1)
def read() -> Optional[Dict[str, Any]]:
    """The file's content; None where it cannot be read, which must stop nobody's training."""
    try:
        with open(PATH, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def releases(package: str) -> Optional[Tuple[str, ...]]:
    """The releases of a package with which our tests have passed; None: the matrix does not have it."""
    content = read()
    if content is None:
        return ()
    return tuple(content[package]) if package in content else None
