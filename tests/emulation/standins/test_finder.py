"""Stand-ins are found last, only under emulation, and answer what libraries ask."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import gapless
from gapless.emulation.standins import finder

PACKAGES = [
    package for name in sorted(finder.package_names()) if (package := finder.package_of(name)) is not None
]
NAMES = [package.name for package in PACKAGES]
DISTRIBUTIONS = {package.distribution for package in PACKAGES}


def test_libraries_find_what_they_ask_for() -> None:
    before = set(sys.modules)
    with gapless.emulate("H100") as emulation:  # which has what needs Hopper, too
        for name in NAMES:
            package = finder.package_of(name)
            assert package is not None
            if not finder.is_standin(importlib.import_module(name)):
                continue  # the real package is installed here
            assert importlib.util.find_spec(name) is not None
            assert importlib.metadata.version(package.distribution) == package.version
            assert importlib.metadata.version(package.distribution.replace("-", "_")) == package.version
            assert package.distribution in importlib.metadata.packages_distributions()[name]
            for module in package.modules:
                assert importlib.import_module(module).__name__ == module
    assert not [
        note for note in emulation.session.notes if "installed here" in note
    ]  # nothing of it was used
    assert not [name for name in set(sys.modules) - before if name.partition(".")[0] in NAMES]
    for name in NAMES:
        assert importlib.util.find_spec(name) is None or not finder.is_standin(importlib.import_module(name))


def test_asking_whether_they_are_installed_makes_none_of_their_classes() -> None:
    """Libraries register all subclasses of torch's by name, and those of two packages have package name."""
    code = f"""
        import importlib.metadata
        import importlib.util
        import torch
        import gapless

        with gapless.emulate("H100"):
            there = {{package.metadata["Name"] for package in importlib.metadata.distributions()}}
            print(len(there & {DISTRIBUTIONS}))
            print(all(importlib.util.find_spec(name) for name in {NAMES}))
            kinds = [*torch.nn.Module.__subclasses__(), *torch.optim.Optimizer.__subclasses__()]
            print([k for k in kinds if k.__module__.startswith("gapless.emulation.standins.packages.")])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(len(DISTRIBUTIONS)), "True", "[]"], done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_lacks(name: str) -> None:
    package = finder.package_of(name)
    assert package is not None
    assert package.name == name
    assert package.lacks
    assert not package.lacks.endswith(".")


def test_without_standins_there_is_nothing() -> None:
    with gapless.emulate(standins=False), pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn")


def test_a_package_that_is_there_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with gapless.emulate():
        assert importlib.import_module("flash_attn").mine
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("flash-attn")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("flash_attn.bert_padding")
    sys.modules.pop("flash_attn")


def test_missing_names_report_their_package() -> None:
    with gapless.emulate() as emulation:
        package = importlib.import_module("apex")
        assert package.optimizers.FusedAdam
        assert not hasattr(package, "reparameterization")
        with pytest.raises(ImportError, match=r"cannot import name 'thing' from 'apex' \(.*Gapless"):
            exec("from apex import thing")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("apex.contrib.xentropy")
        assert not any("the stand-in lacks" in note for note in emulation.session.notes)  # nobody used any
        weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
        weight.grad = torch.ones(2, device="cuda")
        package.optimizers.FusedAdam([weight]).step()
        notes = [note for note in emulation.session.notes if "the stand-in lacks" in note]
    assert len(notes) == 1
    for name in ("apex.thing", "apex.contrib"):
        assert name in notes[0]
    assert "reparameterization" not in notes[0]  # whoever asks that way knows what to do without
