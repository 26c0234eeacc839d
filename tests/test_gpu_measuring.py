"""The command that measures on a GPU: stopped at any time, it goes on where it was."""

from __future__ import annotations

import importlib.util
import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gapless.emulation.memory.requests import reports_storage_ends

FOLDER = Path(__file__).parent.parent / "benchmarks"


@contextmanager
def scripts_importable() -> Iterator[None]:
    """Let the scripts find their common part beside them; afterwards the path is as it was."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path[:0] = [str(FOLDER / "gpu"), str(FOLDER)]
    yield
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


def load(name: str) -> ModuleType:
    with scripts_importable():
        spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / "gpu" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"gpu_{name}"] = module
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return load("measure")


@pytest.fixture
def common(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the scripts share, writing into a folder of its own."""
    module = load("_experiment")
    for name in ("HERE", "STATE", "KEPT"):
        monkeypatch.setattr(module, name, tmp_path_factory.mktemp(name))
    return module


FACTS = {"date": "today", "commit": "here", "hardware": "16 cores, GPU: some", "versions": "torch"}


class Ended(Exception):
    """Stands for what ends the whole run: a limit, a machine that is taken away."""


def script_with(
    common: ModuleType, name: str, endings: Iterator[str], done: list[str], **parts: list[str]
) -> Any:
    """Return a script whose parts end as `endings` say ("" is well); `done` gets those that end well."""

    class Scripted(common.Script):
        def run_part(self, part: str, seconds: float) -> str:
            error = next(endings, "")
            if error == "ended":
                raise Ended
            self.kept.add(part, **({"failed": error} if error else {"result": f"of {part}", "facts": FACTS}))
            done.extend([] if error else [f"{name}/{part}"])
            return error

    def sheet(results: dict[str, str]) -> tuple[str, list[str]]:
        return "".join(f"{part}: {result}\n" for part, result in results.items()), []

    return Scripted("", f"{name}.py", "Title", "method", None, sheet, **parts)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(endings=st.lists(st.sampled_from(["", "out of memory", "ended"]), max_size=14))
def test_a_run_that_is_ended_goes_on_where_it_was(common, tmp_path_factory, endings) -> None:
    common.STATE, common.HERE = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("here")
    coming, done = iter(endings), []
    parts = {"a": {"together": ["1", "2"], "alone": ["3"]}, "b": {"alone": ["4", "5"]}}
    names = [
        f"{name}/{part}" for name, groups in parts.items() for group in groups.values() for part in group
    ]
    for _ in range(len(endings) + 1):
        scripts = [script_with(common, name, coming, done, **groups) for name, groups in parts.items()]
        try:
            status = common.run_scripts(scripts, 1e9)
        except Ended:
            continue
        assert status == (0 if set(done) == set(names) else 1)
        for script in scripts:
            page = common.HERE / f"{script.name}.md"
            text = page.read_text() if page.exists() else ""
            for part in (*script.together, *script.alone):
                ended_well = f"{script.name}/{part}" in done
                assert (f"{part}: of {part}" in text) == ended_well
                assert not text or (f"| {part} |" in text) != ended_well
    assert sorted(done) == sorted(names)


def test_every_script_gets_its_turn_before_any_gets_a_second(common) -> None:
    done: list[str] = []
    scripts = [
        script_with(common, "a", iter(()), done, alone=["1", "2", "3"]),
        script_with(common, "b", iter(()), done, alone=["4"]),
        script_with(common, "c", iter(()), done, alone=["5", "6"]),
    ]
    assert common.run_scripts(scripts, 1e9) == 0
    assert done == ["a/1", "b/4", "c/5", "a/2", "c/6", "a/3"]


def test_nothing_is_begun_when_the_budget_is_used_up(common) -> None:
    done: list[str] = []
    scripts = [script_with(common, "a", iter(()), done, together=["1"], alone=["2"])]
    assert common.run_scripts(scripts, 0) == 1
    assert not done


def test_only_what_is_wanted_runs(common) -> None:
    done: list[str] = []
    parts = {"together": ["predicted x", "real x"], "alone": ["real y"]}
    scripts = [script_with(common, "a", iter(()), done, **parts)]
    common.run_scripts(scripts, 1e9, lambda _, name: name.startswith("predicted"))
    assert done == ["a/predicted x"]


def test_every_script_of_the_folder_is_measured(measure) -> None:
    scripts = {path.stem for path in (FOLDER / "gpu").glob("[!_]*.py")} - {"measure"}
    assert measure.SCRIPTS.keys() == scripts


def test_what_takes_too_long_is_ended_with_all_that_it_started(common) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    assert common.run([sys.executable, "-c", code], 0.5) == "not done after 0 s"
    assert common.run([sys.executable, "-c", "raise SystemExit(3)"], 60) == "exit status 3: "
    assert common.run([sys.executable, "-c", ""], 60) == ""


@pytest.mark.parametrize("gpu", ["some", "none"])
def test_a_sheet_of_the_emulated_device_never_takes_the_place_of_a_real_one(common, monkeypatch, gpu) -> None:
    facts = [{**FACTS, "hardware": f"16 cores, GPU: {gpu}"}]
    monkeypatch.setattr(common, "SELF_CHECK", True)
    page = common.keep("some", "Some title", "how", "the text", facts)
    assert page.splitlines()[0].startswith("NOT MEASURED")
    assert (common.STATE / "some.md").read_text() == page
    assert not list(common.HERE.iterdir())
    monkeypatch.setattr(common, "SELF_CHECK", False)
    if gpu == "none":
        with pytest.raises(RuntimeError, match="none was measured"):
            common.keep("some", "Some title", "how", "the text", facts)
    else:
        assert "NOT MEASURED" not in common.keep("some", "Some title", "how", "the text", facts)
        assert (common.HERE / "some.md").exists()


def test_a_sheet_of_two_machines_names_both(common) -> None:
    other = {**FACTS, "hardware": "2 cores, GPU: none", "commit": "there"}
    page = common.keep("some", "Some title", "how", "", [FACTS, other])
    assert "- hardware: 16 cores, GPU: some; 2 cores, GPU: none\n" in page
    assert "commit here; there," in page


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 25), max_size=12))
def test_all_that_is_kept_is_packed_once_into_archives_that_can_travel(
    measure, monkeypatch, tmp_path_factory, sizes
) -> None:
    here = tmp_path_factory.mktemp("gpu")
    monkeypatch.setattr(measure, "HERE", here)
    monkeypatch.setattr(measure, "VOLUME", 20)
    monkeypatch.setattr(measure._experiment, "KEPT", here / "kept")
    monkeypatch.setattr(measure._experiment, "STATE", here / ".state")
    for folder in ("kept", ".state"):
        (here / folder).mkdir()
    (here / "some.md").write_text("a sheet")
    (here / ".state" / "stages.json").write_text("{}")
    for number, size in enumerate(sizes):
        (here / "kept" / f"{number:02}").write_bytes(b"x" * size)
    measure.pack(here / "out")
    held: list[str] = []
    for path in (here / "out").iterdir():
        with tarfile.open(path) as archive:
            members = archive.getmembers()
        held += [member.name for member in members]
        assert path.name.startswith("measured") or sum(member.size for member in members) <= 20
    fitting = [f"kept/{number:02}" for number, size in enumerate(sizes) if size <= 20]
    assert sorted(held) == sorted([*fitting, "some.md", ".state/stages.json"])


def test_each_race_that_is_shown_is_the_one_that_its_rule_is_about(monkeypatch) -> None:
    if not reports_storage_ends():
        pytest.skip("this torch does not tell when storages end")
    races = load("races")
    monkeypatch.setattr(races, "N", 64)
    try:
        for name, (rule, function) in races.CASES.items():
            assert races.rules(function) == {"wrong": [rule], "right": []}, name
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert {rule for rule, _ in races.CASES.values()} == {f"GAP80{number}" for number in range(1, 6)}
