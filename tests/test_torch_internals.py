"""Private names of torch: asked for in one module, which knows the versions that have them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import torch

import gapless
from gapless import torch_internals
from gapless.errors import UsageError
from gapless.torch_internals import NAMES, NEWEST, OLDEST, VERSION

HERE = "gapless.torch_internals"
HELPERS = {
    "NAMES",
    "NEWEST",
    "OLDEST",
    "VERSION",
    "PrivateName",
    "path",
    "place",
    "missing_note",
    "untested_note",
}
SOURCES = sorted(Path(gapless.__file__).parent.rglob("*.py"))


def private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


class Asked:
    """What one source asks of torch: private names it names itself, and names it has from the one module."""

    def __init__(self, source: str) -> None:
        self.privately: list[str] = []
        self.names: set[str] = set()
        tree = ast.parse(source)
        self.roots: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._imported(node)
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                self._read(self._dotted(node))
            elif isinstance(node, ast.Call):
                self._called(node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            inner = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            full = inner + alias.name
            if full == HERE or full.startswith(HERE + "."):
                self.names |= {full.removeprefix(HERE + ".")} - {HERE}
            elif full.split(".")[0] == "torch":
                self._read(full)
            named = alias.asname or (alias.name if inner else alias.name.split(".")[0])
            self.roots[named] = full if inner or alias.asname else named

    def _dotted(self, node: ast.AST) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self.roots.get(node.id, "") if isinstance(node, ast.Name) else ""
        return ".".join([root, *reversed(parts)]) if root else ""

    def _named(self, node: ast.AST) -> str:
        return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

    def _read(self, dotted: str) -> None:
        if dotted.startswith(HERE + "."):
            first, *more = dotted.removeprefix(HERE + ".").split(".")
            self.names.add(first)
            self.privately += [dotted] if private(".".join(more)) else []
        elif dotted.split(".")[0] == "torch" and private(dotted):
            self.privately.append(dotted)

    def _called(self, node: ast.Call) -> None:
        """``getattr(torch._C, "_name")`` and ``place("name")``."""
        words = [
            arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        called = self._named(node.func)
        if called in ("getattr", "hasattr", "setattr") and len(node.args) > 1 and words:
            owner = node.args[0]
            root = self.roots.get(owner.id, "") if isinstance(owner, ast.Name) else self._dotted(owner)
            if root.split(".")[0] == "torch" and private(words[0]):
                self.privately.append(f"{root}.{words[0]}")
        elif called in ("place", "path") and words and words[0] in NAMES:
            self.names.add(words[0])
        elif called == "import_module":
            self.privately += [word for word in words if word.startswith("torch.") and private(word)]


@pytest.mark.parametrize(
    ("source", "private_names"),
    [
        ("import torch._C", ["torch._C"]),
        ("from torch._C import FakeWork", ["torch._C.FakeWork"]),
        ("from torch.overrides import _pop_mode as pop", ["torch.overrides._pop_mode"]),
        ("import torch\ntorch._C._nn.x()", ["torch._C._nn.x"]),
        ("from torch import nn\ndef f():\n    return nn.Module._apply", ["torch.nn.Module._apply"]),
        ("import torch as t\nt.cuda._tls", ["torch.cuda._tls"]),
        ("import torch\nhasattr(torch.cuda, '_tls')", ["torch.cuda._tls"]),
        ("import importlib\nimportlib.import_module('torch._dynamo')", ["torch._dynamo"]),
        (f"from {HERE} import functorch\nfunctorch._x", [f"{HERE}.functorch._x"]),
        ("import torch\ntorch.nn.Module.apply, torch.__version__, torch.Tensor.__add__", []),
        ("def f(self):\n    return self._torch._C", []),
    ],
)
def test_the_reader_sees_private_names(source: str, private_names: list[str]) -> None:
    assert Asked(source).privately == private_names


@cache
def elsewhere() -> list[tuple[Path, Asked]]:
    return [(file, Asked(file.read_text())) for file in SOURCES if file.name != "torch_internals.py"]


def test_private_names_are_asked_for_in_one_module() -> None:
    uses = {f"{file.name}: {name}" for file, reader in elsewhere() for name in reader.privately}
    assert not uses, "list these in torch_internals, and ask it for them: " + ", ".join(sorted(uses))


def test_what_is_listed_is_used_and_what_is_used_is_listed() -> None:
    used = {name for _, reader in elsewhere() for name in reader.names} - HELPERS
    assert used == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_in_the_versions_that_are_said_to_have_it(name: str) -> None:
    versions = NAMES[name]
    assert OLDEST <= versions.since <= versions.until
    if versions.built_with:
        return  # a build says itself what it has
    is_there = getattr(torch_internals, name) is not None
    assert is_there == (versions.since <= VERSION <= versions.until)


def test_a_name_that_should_be_there_and_is_not_is_an_error_in_one_line(monkeypatch) -> None:
    monkeypatch.setitem(NAMES, "gone", torch_internals.PrivateName("torch._C._gone"))
    monkeypatch.setattr(torch, "__version__", "2.12.9")
    with pytest.raises(UsageError) as caught:
        getattr(torch_internals, "gone")  # noqa: B009 - as the rooms read it
    assert str(caught.value) == (
        "torch 2.12.9 has no torch._C._gone, which Gapless needs: it is tested with torch 2.4 to 2.15"
    )


def test_a_name_that_came_later_is_none(monkeypatch) -> None:
    later = torch_internals.PrivateName("torch._C._later", since=(98, 0), without="nothing is later")
    monkeypatch.setitem(NAMES, "later", later)
    assert torch_internals.later is None
    assert torch_internals.missing_note("later") == (
        f"torch {VERSION[0]}.{VERSION[1]} has no torch._C._later: nothing is later"
    )
    del torch_internals.later  # it is kept


def test_an_old_torch_is_refused_before_the_script_runs(plain_python, write) -> None:
    write("train.py", "print('ran')\n")
    code = (
        "import sys, torch\ntorch.__version__ = '2.3.1+cu121'\n"
        "from gapless.commands import main\nsys.exit(main(['check', 'train.py']))\n"
    )
    process = plain_python("-c", code)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == ("gapless: torch 2.3.1+cu121 is too old: Gapless needs torch 2.4 or newer\n")


def test_a_newer_torch_is_said_to_be_untried(monkeypatch) -> None:
    assert VERSION > NEWEST or not torch_internals.untested_note()
    monkeypatch.setattr(torch_internals, "VERSION", (NEWEST[0], NEWEST[1] + 1))
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    said = "torch 2.16.0 is newer than the versions Gapless is tested with (2.4 to 2.15)"
    assert torch_internals.untested_note() == said
    with gapless.emulate() as emulation:
        torch.ones(2, device="cuda").sum().item()
    assert said in emulation.session.notes
