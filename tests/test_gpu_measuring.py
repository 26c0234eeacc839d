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

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gapless.emulation.memory.requests import reports_storage_ends

FOLDER = Path(__file__).parent.parent / "benchmarks"


@contextmanager
def found_there() -> Iterator[None]:
    """The scripts find their common part beside them, and put it on the path; here it goes again."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path[:0] = [str(FOLDER / "gpu"), str(FOLDER)]
    yield
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)


def script(name: str) -> ModuleType:
    with found_there():
        spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / "gpu" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"gpu_{name}"] = module
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return script("measure")


@pytest.fixture
def common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the scripts share, which writes into a folder of its own."""
    module = script("_experiment")
    for name, folder in {"HERE": "gpu", "STATE": "state", "KEPT": "kept"}.items():
        monkeypatch.setattr(module, name, tmp_path / folder)
        (tmp_path / folder).mkdir()
    return module


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=st.lists(st.sampled_from(["done", "failed", "out of time", "stopped"]), max_size=12))
def test_a_run_that_is_stopped_goes_on_where_it_was(measure, tmp_path_factory, ends) -> None:
    stages = [measure.Stage(name, 10, "") for name in "abcde"]
    file = tmp_path_factory.mktemp("state") / "state.json"
    finished: list[str] = []
    coming = iter(ends)

    def run(command, seconds):
        end = next(coming, "done")
        if end == "stopped":
            raise KeyboardInterrupt
        if end == "done":
            finished.append(Path(command[1]).stem)
        return end

    for _ in range(len(ends) + 1):
        state = measure.State(file, "here")
        try:
            measure.go(stages, state, 1e9, False, run, lambda: None)
        except KeyboardInterrupt:
            assert "stopped" in measure.State(file, "here").table(stages)
    assert sorted(finished) == list("abcde")
    assert all(measure.State(file, "here").done(stage) for stage in stages)
    assert not any(measure.State(file, "elsewhere").done(stage) for stage in stages)


def test_no_stage_is_begun_that_does_not_fit_into_what_is_left(measure, tmp_path) -> None:
    stages = [measure.Stage("long", 100, ""), measure.Stage("short", 10, "")]
    begun: list[str] = []
    state = measure.State(tmp_path / "state.json", "here")
    measure.go(stages, state, 50, False, lambda command, _: begun.append(command[1]) or "done", lambda: None)
    assert [Path(path).stem for path in begun] == ["short"]
    assert "| long | not measured yet |" in state.table(stages)


def test_every_script_of_the_folder_is_a_stage(measure) -> None:
    scripts = {path.stem for path in (FOLDER / "gpu").glob("[!_]*.py")} - {"measure"}
    assert {stage.name for stage in measure.STAGES} == scripts


def test_what_takes_too_long_is_ended_with_all_that_it_started(measure) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    assert measure.run_limited([sys.executable, "-c", code], 0.5) == "out of time"
    assert measure.run_limited([sys.executable, "-c", "raise SystemExit(3)"], 60) == "failed"
    assert measure.run_limited([sys.executable, "-c", ""], 60) == "done"


@pytest.mark.parametrize("gpu", [True, False])
def test_a_sheet_of_the_emulated_device_says_so_and_never_takes_the_place_of_a_real_one(
    common, monkeypatch, gpu
) -> None:
    monkeypatch.setattr(common, "REAL", gpu)
    page = common.keep("some", "Some title", "how", "the text", True)
    assert page.splitlines()[0].startswith("NOT MEASURED")
    assert (common.STATE / "some.md").read_text() == page
    assert not list(common.HERE.iterdir())
    if gpu:
        assert not common.keep("some", "Some title", "how", "the text", False).startswith("NOT MEASURED")
        assert (common.HERE / "some.md").exists()
    else:
        with pytest.raises(RuntimeError, match="there is none"):
            common.keep("some", "Some title", "how", "the text", False)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=st.lists(st.sampled_from(["", "out of memory", "killed"]), max_size=10))
def test_a_part_that_fails_loses_itself_alone_and_is_run_again(
    common, monkeypatch, tmp_path_factory, ends
) -> None:
    common.STATE, common.HERE = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("here")
    monkeypatch.setattr(common, "REAL", True)
    parts, done = ["a", "b", "c"], []
    coming = iter(ends)

    def run(command, seconds, **options):
        name, target = command[3], Path(command[5])
        end = next(coming, "")
        if end == "killed":
            raise KeyboardInterrupt
        if not end:
            done.append(name)
            target.write_text(f'"of {name}"')
        return end

    monkeypatch.setattr(common, "run", run)

    def sheet_of(rows):
        return ", ".join(f"{name}: {value}" for name, value in rows.items()), []

    stage = common.Stage("", "some.py", "", "", [(parts, 1)], None, sheet_of)
    for _ in range(len(ends) + 1):
        try:
            status = stage.measure(False, lambda name: True)
        except KeyboardInterrupt:
            continue
        sheet = (common.HERE / "some.md").read_text()
        assert all((f"{name}: of {name}" in sheet) == (name in done) for name in parts)
        assert all(f"| {name} |" in sheet for name in parts if name not in done)
        assert status == (0 if set(done) == set(parts) else 1)
    assert sorted(done) == parts


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
    races = script("races")
    monkeypatch.setattr(races, "N", 64)
    try:
        for name, (rule, function) in races.CASES.items():
            assert races.rules(function) == {"wrong": [rule], "right": []}, name
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert {rule for rule, _ in races.CASES.values()} == {f"GAP80{number}" for number in range(1, 6)}
