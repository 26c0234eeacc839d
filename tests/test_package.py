"""What strangers see of the package: one version, metadata that agree, files that are there."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

import gapless
from gapless.commands import cli

PROJECT = Path(__file__).resolve().parents[1]


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def field(name: str) -> str:
    """A plain field of the citation file."""
    match = re.search(rf"^{name}: \"?([^\"\n]+)", read("CITATION.cff"), re.MULTILINE)
    assert match is not None, name
    return match[1].strip()


def test_the_version_is_in_one_place_and_the_others_take_it_from_there() -> None:
    project = read("pyproject.toml")
    assert 'version = { attr = "gapless._version.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    assert field("version") == gapless.__version__
    shown = CliRunner().invoke(cli, ["--version"]).output
    assert shown.split() == ["gapless", gapless.__version__]


def test_the_changelog_begins_with_what_is_not_released_or_with_this_version() -> None:
    titles = re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert titles[0] in ("Unreleased", gapless.__version__)
    released = [title for title in titles if title != "Unreleased"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", title) for title in released)
    assert not released or released[0] == gapless.__version__


def test_licence_and_python_versions_agree() -> None:
    project = read("pyproject.toml")
    assert f'license = "{field("license")}"' in project
    assert "Apache License" in read("LICENSE")
    assert 'requires-python = ">=3.10"' in project
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f'"Programming Language :: Python :: {version}"' in project


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "LICENSE",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "CITATION.cff",
    ],
)
def test_a_stranger_finds(name: str) -> None:
    assert len(read(name)) > 200


def test_nothing_pins_a_python_version_out() -> None:
    marked = [line for line in read("constraints.txt").split("\n") if "python_version" in line]
    assert all("python_version >=" in line for line in marked)


def backend() -> ModuleType:
    """The functions of the build backend; importing it would build."""
    pytest.importorskip("setuptools", minversion="77")
    text = read("tools/build_backend.py")
    module = ModuleType("build_backend")
    module.__file__ = str(PROJECT / "tools" / "build_backend.py")
    exec(compile(text.removesuffix("\n_write()\n"), module.__file__, "exec"), vars(module))
    return module


RELATIVE = re.compile(r"\]\((?![a-z]+://)([^)#]*)")


@pytest.mark.parametrize("source", ["", "https://example.org/gapless"])
def test_no_link_of_the_package_is_dead_outside_of_the_repository(source: str) -> None:
    readme = read("README.md")
    inside = RELATIVE.findall(re.sub(r"^```.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL))
    assert inside
    assert all((PROJECT / path).exists() for path in inside)
    shown = backend().long_description(readme, source)
    assert not RELATIVE.search(re.sub(r"^```.*?^```$", "", shown, flags=re.MULTILINE | re.DOTALL))
    assert [f"{source}/blob/main/{path}" in shown for path in inside] == [bool(source)] * len(inside)
    assert "<!--" not in shown
    assert readme.count("```") == shown.count("```")


def test_the_repositorys_address_is_read_where_there_is_one() -> None:
    address = backend().source_address
    assert address('[project]\nname = "x"\n') == ""
    urls = '[project.urls]\nChangelog = "https://example.org/c"\nSource = "https://example.org/x/"\n'
    assert address(f"[project]\n{urls}") == "https://example.org/x"
    assert address('[project.urls]\nHome = "a"\n\n[tool.x]\nSource = "b"\n') == ""


def test_extras_that_pages_install_exist() -> None:
    project = read("pyproject.toml")
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    installed = {
        extra
        for page in pages
        for extras in re.findall(r"(?:gapless|-e \"?\.)\[([a-z,]+)\]", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert installed
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in installed)


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))
    workflows = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
    assert {path.stem for path in workflows} == {"docs", "release", "tests"}
    for path in workflows:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        used = re.findall(r"\bmake (\w+)", "\n".join(commands))
        assert set(used) <= targets
        assert commands


def test_the_quick_tests_are_of_each_room() -> None:
    quick = read("tests/quick.txt").split()
    assert [name for name in quick if not (PROJECT / name).is_file()] == []
    rooms = {path.name for path in (PROJECT / "tests").iterdir() if path.is_dir()} - {"__pycache__"}
    ours = {path.name for path in (PROJECT / "src" / "gapless").iterdir() if path.is_dir()}
    assert {Path(name).parts[1] for name in quick} >= (rooms & ours) - {"integrations"}
