"""What a project has installed is its developer's own code."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.support import stacks
from gapless.emulation.support.projects import installed_from

READ = "def read(x):\n    return x.sum().item()\n"
DECLARATIONS = {
    "pyproject.toml": '[build-system]\nname = "other"\n[project]\nversion = "1"\nname = "my-layers"\n',
    "setup.cfg": "[metadata]\nname = my-layers\n",
    "setup.py": "Extension(name='my_layers._C')\nsetup(name='my-layers', version='1')\n",
}


def install(site: Path, *files: str, name: str = "my_layers") -> None:
    """Install a distribution with `files`, each of which has the function `read`."""
    record = site / f"{name}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{record.name}/METADATA")))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(READ)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    install(folder, "gplayers/__init__.py", "gplayers/inner/__init__.py", "gplayers_extra.py")
    install(folder, "gpforeign/__init__.py", name="gpforeign")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize("file", DECLARATIONS)
def test_a_project_names_what_it_installed(file: str, tmp_path: Path, site: Path) -> None:
    below = tmp_path / "project" / "examples" / "small"
    below.mkdir(parents=True)
    (tmp_path / "project" / file).write_text(DECLARATIONS[file])
    assert installed_from(below) == (str(site / "gplayers"), str(site / "gplayers_extra.py"))


@pytest.mark.parametrize(
    "text", ["", "[project]\n", '[project]\nname = "never-installed"\n', '[project]\nname = ""\n']
)
def test_a_project_that_installed_nothing_names_nothing(text: str, tmp_path: Path, site: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert installed_from(tmp_path) == ()


def test_the_nearest_root_counts(tmp_path: Path, site: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(DECLARATIONS["pyproject.toml"])
    script = tmp_path / "scripts"
    (script / ".git").mkdir(parents=True)
    assert installed_from(tmp_path)
    assert installed_from(script) == ()


@pytest.mark.parametrize("name", ["torch", "gapless"])
def test_torch_stays_a_library_for_its_own_developers(name: str, tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text(f"[metadata]\nname = {name}\n")
    assert installed_from(tmp_path) == ()


def test_a_sync_is_shown_in_the_project_s_installed_code(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, foreign = importlib.import_module("gplayers"), importlib.import_module("gpforeign")
    stacks.library_of.cache_clear()
    (tmp_path / "setup.cfg").write_text(DECLARATIONS["setup.cfg"])
    monkeypatch.chdir(tmp_path)
    with Emulator() as emulator:
        layers.read(torch.ones(3, device="cuda"))
        foreign.read(torch.ones(3, device="cuda"))
        own, called = (site.line for site in emulator.session().sites)
    assert own.file == layers.__file__
    assert called.file == __file__
