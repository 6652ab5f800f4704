"""A fingerprint tells what a target does, and nothing of how it is laid out or which Python reads it."""

from __future__ import annotations

import py_compile
import textwrap
import warnings

import pytest

from ddp_patches.engine import fingerprint

# Whatever the Pythons from 3.8 on build different trees of; a Python that adds a difference fails here.
SAMPLE = r'''
import os

class Trainer:
    """Trains."""

    @property
    def device(self) -> "str":
        return "cuda"

    @staticmethod
    async def work(self, amount: int = 3, *rest: int, unit=u"h", big=0xFF, **more) -> None:
        """Docstring.

        Of two paragraphs.
        """
        def inner(a, b=None):
            "Another docstring."
            return a[0], a[1:2], a[0, 1], a[1:2, ::3], a[(1, 2)], a[b][...], a[()]

        class Local(dict):
            """A third one."""

        text = f"{amount!r:>{unit}} and {{braces}} {rest=} {more['key']:}" "tail" f"{1}" f""
        text += "ä\u200b\U0001fae8"
        empty = f""
        data = b"\x00\xff" + bytes(1)
        numbers = (1, 1.5, 1e400, 2j, -1, True, None, ..., 10 ** 3)
        x: int = 1
        y: int
        if (n := len(text)) > 1 and not amount is None:
            async with os.scandir(".") as entries, open("x"):
                pass
        for i, *others in enumerate([*rest, 1]):
            print(i, *others, sep="", **{"end": "", **more})
        else:
            del data
        try:
            raise ValueError from None
        except (ValueError, OSError) as error:
            lambda a, /, b, *, c=1: (yield)
        finally:
            global z
            assert x, "no"
        return {**more, "a": 1}, {1, 2}, [i async for i in empty if i], super().work
'''

# Taken on Python 3.11 and written down by hand; it may only change together with all of known.json.
SAMPLE_PRINT = "dc350e6c9d2bfc10"


def of(source, attribute="work"):
    found = fingerprint.of_source(textwrap.dedent(source), attribute)
    assert found is not None, source
    return found


def test_the_same_source_has_the_same_fingerprint_on_every_python():
    found = of(SAMPLE, "Trainer.work")
    assert found.fingerprint == SAMPLE_PRINT
    assert found.signature == "(self, amount=3, *rest, unit='h', big=255, **more)"
    assert found.calls == (
        "bytes", "enumerate", "len", "open", "os.scandir", "print", "super",
    )  # fmt: skip


PLAIN = "def work(amount, unit='h'):\n    return amount * 2\n"


@pytest.mark.parametrize(
    "source",
    [
        '"""Of the module."""\nimport os\n\n\n' + PLAIN,
        "def work(amount, unit='h'):\n    'What it does.'\n    return amount * 2\n",
        "def work(amount,  # of work\n         unit='h'):\n\n    # twice\n    return (amount\n      * 2)\n",
        "def work(amount: int, unit: 'str' = 'h') -> int:\n    return amount * 2\n",
        'def work(amount, unit="h"):\n    return amount * 2\n\ndef other(): ...\n',
        "def work(rank): ...\n" + PLAIN,  # of several definitions the last
        "from typing import overload\n@overload\ndef work(a: int): ...\n" + PLAIN,
        PLAIN + "@overload\ndef work(a: int): ...\n",
        "if True:\n" + textwrap.indent(PLAIN, "  ") + "else:\n  def work(): ...\n",
        "try:\n" + textwrap.indent(PLAIN, "  ") + "except ImportError:\n  def work(): ...\n",
        "try:\n  import x\nexcept ImportError:\n  if x:\n" + textwrap.indent(PLAIN, "    "),
        PLAIN + "if TYPE_CHECKING:\n  def work(): ...\n",
        PLAIN.replace("\n", "\r\n"),
    ],
)
def test_what_does_not_count(source):
    assert of(source) == of(PLAIN)


@pytest.mark.parametrize(
    "source",
    [
        "def work(amount, unit='h'):\n    return amount * 3\n",
        "def work(amount, unit='h'):\n    return amount + 2\n",
        "def work(amount, unit='m'):\n    return amount * 2\n",
        "def work(amount, unit):\n    return amount * 2\n",
        "def work(amount, *, unit='h'):\n    return amount * 2\n",
        "def work(amount, unit='h'):\n    'Docstring.'\n    'No docstring.'\n    return amount * 2\n",
        "async def work(amount, unit='h'):\n    return amount * 2\n",
        "@cache\n" + PLAIN,
        "class work:\n    def __init__(self, amount, unit='h'): ...\n",
        PLAIN + "if 1:\n    def work(amount, unit='h'): ...\n",
    ],
)
def test_what_counts(source):
    assert of(source).fingerprint != of(PLAIN).fingerprint


def test_constants_that_look_alike_differ():
    constants = ("1", "1.0", "True", "'1'", "b'1'", "None", "")
    prints = {of("def work(): return %s\n" % text).fingerprint for text in constants}
    assert len(prints) == len(constants)


def test_a_method_is_looked_for_in_its_own_class():
    source = """
        class Other:
            def work(self): ...
        class Trainer:
            def work(self, rank): ...
            class Inner:
                def work(self, inner): ...
    """
    assert of(source, "Trainer.work").signature == "(self, rank)"
    assert of(source, "Trainer.Inner.work").signature == "(self, inner)"
    for attribute in ("work", "Trainer.nothing", "Nothing.work", "Trainer.work.work"):
        assert fingerprint.of_source(textwrap.dedent(source), attribute) is None


def test_calls_are_named_as_far_as_they_are_names():
    source = "def work(self):\n  dist.barrier(a.b.c(), x[0](), f()(), 'a'.join(b))\n  self.model.train()\n"
    assert of(source).calls == ("a.b.c", "dist.barrier", "f", "self.model.train")


@pytest.mark.parametrize(
    "content",
    [
        b"def work(:\n",
        b"def work(): '\xff'\n",
        b"# coding: no-such-coding\ndef work(): ...\n",
        b"\x00",
        b"",
        b"(" * 2000,
        b"def work(): " + b"-" * 100000 + b"1\n",
    ],
    ids=range(7),
)
def test_a_source_that_cannot_be_read_has_none(tmp_path, content):
    path = tmp_path / "module.py"
    path.write_bytes(content)
    assert fingerprint.of_file(str(path), "work") is None


def test_codings_are_minded(tmp_path):
    path = tmp_path / "module.py"
    path.write_bytes("# coding: latin-1\ndef work(): return 'ä'\n".encode("latin-1"))
    assert fingerprint.of_file(str(path), "work") == of("def work(): return 'ä'\n")
    path = tmp_path / "marked.py"
    path.write_bytes(b"\xef\xbb\xbf" + PLAIN.encode())
    assert fingerprint.of_file(str(path), "work") == of(PLAIN)


def test_a_module_without_source_has_none(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(PLAIN)
    compiled = py_compile.compile(str(path), cfile=str(tmp_path / "module.pyc"))
    for name in (compiled, str(tmp_path / "module.so"), str(tmp_path / "gone.py"), str(tmp_path), "", None):
        assert fingerprint.of_file(name, "work") is None


def test_warnings_about_others_source_are_not_shown(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("def work(): return '\\d' is 1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fingerprint.of_file(str(path), "work") is not None


def test_nothing_is_run_or_imported(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import os\nos._exit(7)\n@os._exit(7)\ndef work(a=os._exit(7)): ...\n")
    assert fingerprint.of_file(str(path), "work").signature == "(a=...)"
