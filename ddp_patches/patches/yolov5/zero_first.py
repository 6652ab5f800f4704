"""YOLOv5's ``torch_distributed_zero_first``: rank-0-first blocks without a time-out.

Why: as in Ultralytics, rank 0 scans the labels inside this block while the others wait in a barrier with the
group's limit (60 s in 2021, 30 minutes or three hours since). The barrier takes the global number of the GPU
for granted, and gloo and old torch refuse its ``device_ids``: that is ``torch.barrier_device_ids``'s affair.

How: see ``_zero_first``. In a checkout the module is called ``utils.torch_utils``, as in many other projects:
there the function is recognised by what it does, written exactly as YOLOv5 does. Projects that carry the
same function get the same cure.

Upstream: https://github.com/ultralytics/yolov5/issues/4400
"""

from __future__ import annotations

import hashlib
import inspect
import io
import tokenize
from typing import Any, Callable, Optional

from ...engine.patch import patch
from .. import _job, _zero_first

ID = "yolov5.zero_first"

PATCH = patch(
    ID,
    package="yolov5",
    summary="ranks wait for a slow leader without a time-out, and raise with its reason if it fails",
    why="rank 0's label scan outlives the group's limit; its exception leaves the others waiting",
    upstream="https://github.com/ultralytics/yolov5/issues/4400",
    since="0.1.0",
    remove_when="upstream waits for rank 0 by something else than a collective",
    tested=("6.2.3", "7.0.14"),
    condition=_job.obstacle,
)

# Of the function's words: torch.distributed.barrier() until 2021, dist.barrier(), and with device_ids.
_FINGERPRINTS = frozenset(
    {
        "e00397578da2c269",
        "b8d412d161c27ecb",
        "8773116e020f6f97",
    }
)


def fingerprint(function: Callable[..., Any]) -> Optional[str]:
    """Of a function's body without docstring and comments, 16 hex digits; None without source."""
    try:
        text = inspect.getsource(inspect.unwrap(function))
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (OSError, TypeError, tokenize.TokenError, SyntaxError):
        return None
    indent = next((i for i, token in enumerate(tokens) if token.type == tokenize.INDENT), len(tokens))
    shape = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
    body = [token for token in tokens[indent + 1 :] if token.type not in shape]
    if body and body[0].type == tokenize.STRING:
        del body[:2]  # and the end of its line
    words = [token.string.strip() or tokenize.tok_name[token.type] for token in body]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def stranger(original: Callable[..., Any]) -> Optional[str]:
    """Why ``original`` is not YOLOv5's function, None if it is."""
    if fingerprint(original) in _FINGERPRINTS:
        return None
    return "this is not YOLOv5's function, or one that was changed"


@PATCH.replaces("yolov5.utils.torch_utils:torch_distributed_zero_first", parameters=("local_rank",))
def of_the_distribution(original: Callable[..., Any]) -> Callable[..., Any]:
    """The argument is LOCAL_RANK."""
    return _zero_first.replacement_of(ID, original)


@PATCH.replaces(
    "utils.torch_utils:torch_distributed_zero_first", parameters=("local_rank",), stranger=stranger
)
def of_a_checkout(original: Callable[..., Any]) -> Callable[..., Any]:
    """The argument is LOCAL_RANK."""
    return _zero_first.replacement_of(ID, original)
