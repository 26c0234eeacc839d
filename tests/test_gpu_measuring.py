"""The command that measures on a GPU: stopped at any time, it goes on where it was."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("gpu_measure", FOLDER / "gpu" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_measure"] = module
    spec.loader.exec_module(module)
    sys.path[:] = path
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
    assert [Path(one).stem for one in begun] == ["short"]
    assert "| long | not measured yet |" in state.table(stages)


def test_every_script_of_the_folder_is_a_stage(measure) -> None:
    scripts = {path.stem for path in (FOLDER / "gpu").glob("*.py")} - {"_experiment", "measure"}
    assert {stage.name for stage in measure.STAGES} == scripts


def test_what_takes_too_long_is_ended_with_all_that_it_started(measure) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    assert measure.ran([sys.executable, "-c", code], 0.5) == "out of time"
    assert measure.ran([sys.executable, "-c", "raise SystemExit(3)"], 60) == "failed"
    assert measure.ran([sys.executable, "-c", ""], 60) == "done"
