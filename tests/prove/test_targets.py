"""What is named on the command line: found, loaded, and refused in one line."""

from __future__ import annotations

import sys

import pytest
import torch

from gapless.errors import GaplessError, UsageError
from gapless.prove.naming import is_target, script_words
from gapless.prove.targets import Loader

LOSSES = """
import torch
from beside import FACTOR

def loss(x):
    return FACTOR * x

class Loss(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.scale = scale
    def forward(self, x):
        return x * self.scale

class Plain:
    def __call__(self, x):
        return x
    def double(self, x):
        return 2 * x

plain = Plain()
number = 3
"""


@pytest.fixture
def losses(write, tmp_path, monkeypatch):
    """``losses.py`` in two folders, each with a module beside it that goes by the same name."""
    path, modules = list(sys.path), dict(sys.modules)
    for folder, factor in (("one", 1), ("two", 2)):
        write(f"{folder}/losses.py", LOSSES)
        write(f"{folder}/beside.py", f"FACTOR = {factor}\n")
    monkeypatch.chdir(tmp_path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("losses.py:fixed", True),
        ("a/b/losses.py:Loss(10).forward", True),
        ("package.module:attr", True),
        ("module:lambda x: x", True),
        ("trace.json", False),
        ("train.py", False),
        ("s3://bucket/trace.json", False),
        ("C:\\traces\\a.json", False),
        ("old/rank*.json", False),
        ("losses.py:", False),
    ],
)
def test_names(name, target):
    assert is_target(name) is target


def test_a_file_of_that_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace:a").write_text("{}")
    assert not is_target("trace:a")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train.py", ("train.py",)),
        ("train.py --lr 0.1", ("train.py", "--lr", "0.1")),
        ("my train.py", ("my train.py",)),
        ("train.py 'a b'", ("train.py", "a b")),
        ("trace.json", ()),
        ("it's", ()),
    ],
)
def test_scripts(name, words):
    assert script_words(name) == words


def test_everything_that_can_be_called(losses):
    loader = Loader()
    assert loader.callable("one/losses.py:loss")(3) == 3
    assert loader.callable("one/losses.py:Loss(4)")(2) == 8
    assert loader.callable("one/losses.py:Plain")(5) == 5
    assert loader.callable("one/losses.py:plain.double")(5) == 10
    assert loader.callable("torch.nn.functional:relu") is torch.nn.functional.relu


def test_files_find_what_lies_beside_them(losses):
    loader = Loader()
    assert loader.callable("one/losses.py:loss")(1) == 1
    assert loader.callable("two/losses.py:loss")(1) == 2
    assert loader.callable("one/losses.py:loss")(1) == 1


def test_modules_are_found_from_the_working_directory(losses, tmp_path):
    assert Loader().value("two.beside:FACTOR") == 2


def test_both_sides_begin_with_the_same_parameters(losses):
    loader = Loader(seed=5)
    first, other = (loader.callable("one/losses.py:Loss(1)") for _ in range(2))
    assert torch.equal(first.weight, other.weight)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one/losses.py:los", "one/losses.py:los: there is no 'los' (did you mean loss?)"),
        ("one/losses.py:plain.treble", "there is no 'treble'"),
        ("one/losses.py:number", "is of type int and cannot be called"),
        ("one/losses.py:Loss", "is a class: give its arguments, 'one/losses.py:Loss(…)'"),
        ("one/losses.py:Los(3)", "name 'Los' is not defined (did you mean Loss?)"),
        ("one/losses.py:Loss(", "Loss( is not an expression"),
        ("three/losses.py:loss", "there is no file three/losses.py"),
        ("no.such.module:loss", "there is no module no.such.module"),
    ],
)
def test_missing_files_are_reported_in_one_line(name, words, losses):
    with pytest.raises(UsageError) as caught:
        Loader().callable(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_that_raises_is_shown_with_its_own_frames(losses, write):
    write("bad.py", "def f():\n    raise ValueError('no')\n\nf()\n")
    with pytest.raises(GaplessError) as caught:
        Loader().callable("bad.py:f")
    lines = str(caught.value).splitlines()
    assert lines[0] == "bad.py raises ValueError: no"
    assert [line for line in lines if "File" in line and "gapless" in line.split("File")[1]] == []
    assert sum("bad.py" in line and "File" in line for line in lines) == 2
    assert caught.value.exit_code == 3


def test_a_missing_import_is_the_users(losses, write):
    write("bad.py", "import no_such_library_at_all\n")
    with pytest.raises(GaplessError, match=r"bad\.py raises ModuleNotFoundError"):
        Loader().callable("bad.py:f")
