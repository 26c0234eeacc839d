"""The passes of a profile: what is recorded when, where steps end, what becomes of the script's profiler."""

from __future__ import annotations

import _thread
import gzip
import json
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.profiler import ProfilerAction, ProfilerActivity

import gapless
import gapless.capture.profiling as profiling
from gapless.analyze.run.boundary import StepEnds
from gapless.capture.profiling import PASSES, ProfiledDevice, Profiling, Recipe, Schedule
from gapless.capture.stopping import EnoughSteps, Stopper, Watcher
from gapless.errors import UsageError
from gapless.model import Ending, StepMark
from gapless.trace.read import read

CPU = (ProfilerActivity.CPU,)


class FakeProfiler:
    """Follows its schedule, and remembers what it was made with and which steps it recorded."""

    instances: ClassVar[list[FakeProfiler]] = []

    def __init__(self, *, schedule: Any, on_trace_ready: Any, **options: Any) -> None:
        self.schedule, self.ready, self.options = schedule, on_trace_ready, options
        self.number, self.recorded, self.begun, self.ended = 0, 0, False, False
        self.instances.append(self)

    def start(self) -> None:
        self.begun = True

    def step(self) -> None:
        action = self.schedule(self.number)
        self.recorded += action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        self.number += 1
        if action == ProfilerAction.RECORD_AND_SAVE:
            self.ready(self)

    def stop(self) -> None:
        self.ended = True
        if self.schedule(self.number) in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE):
            self.ready(self)

    def add_metadata_json(self, key: str, value: str) -> None:
        self.metadata = {key: json.loads(value)}

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(f"{self.recorded} steps")


@pytest.fixture(autouse=True)
def _nothing_made():
    FakeProfiler.instances.clear()


@pytest.fixture
def capture(tmp_path):
    """``capture(Schedule(…), **recipe)``: started, on a machine that is none; stopped in the end."""
    started = []

    def make(schedule: Schedule, on_mark: Any = lambda mark: None, **recipe: Any) -> Profiling:
        machine = ProfiledDevice("NVIDIA Nothing", CPU, FakeProfiler, FakeHistory)
        recording = Profiling(Recipe(tmp_path, schedule=schedule, **recipe), machine, StepEnds(), on_mark)
        started.append(recording)
        return recording.start()

    yield make
    for capture_ in started:
        capture_.stop()


def optimizer(kind: Any = torch.optim.SGD) -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return kind([weight], lr=0.1)


def files(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith(".files"))


# When -------------------------------------------------------------------------------------------------------


def test_both_passes_in_turn(capture, tmp_path):
    window, stepper = capture(Schedule(wait=3, warmup=1, active=2)), optimizer()
    calls = []
    for _ in range(12):
        stepper.step()
        calls.append((len(FakeProfiler.instances), len(window.saved), window.done))
    assert calls == [
        *[(0, 0, False)] * 2,  # the third step's end begins the first pass
        *[(1, 0, False)] * 3,
        *[(2, 1, False)] * 3,
        *[(2, 2, True)] * 4,
    ]
    light, heavy = FakeProfiler.instances
    assert (light.options["with_stack"], heavy.options["with_stack"]) == (False, True)
    assert light.recorded == heavy.recorded == 2
    assert files(tmp_path) == ["stacks/rank0.pt.trace.json.gz", "times/rank0.pt.trace.json.gz"]
    assert window.steps == 12
    assert window.recipe.schedule.steps() == 9


def test_windows_that_repeat_have_files_of_their_own(capture, tmp_path):
    window, stepper = capture(Schedule(wait=1, warmup=1, active=1, repeat=2), name="rank3"), optimizer()
    for _ in range(window.recipe.schedule.steps()):
        assert not window.done
        stepper.step()
    assert window.done
    assert files(tmp_path) == [
        f"{which}/rank3.{n}.pt.trace.json.gz" for which in ("stacks", "times") for n in (1, 2)
    ]


def test_without_stacks_there_is_one_pass(capture, tmp_path):
    window, stepper = capture(Schedule(wait=0, warmup=1, active=1), passes=("times",)), optimizer()
    assert FakeProfiler.instances[0].begun
    stepper.step()
    stepper.step()
    assert window.done
    assert files(tmp_path) == ["times/rank0.pt.trace.json.gz"]


class FakeHistory:
    """Writes that it was there; a request may have failed in it."""

    fails: ClassVar[bool] = False

    def __init__(self, path: Path, ranked: bool) -> None:
        self.path, self.saved, self.out_of_memory = path, self.fails, self.fails

    def start(self) -> FakeHistory:
        return self

    def stop(self, save: bool) -> None:
        if save:
            self.path.parent.mkdir(parents=True)
            self.path.write_text("whole")
            self.saved = True


@pytest.mark.parametrize(
    ("passes", "recorded"), [(PASSES, [False, True]), (("times",), [True]), (("stacks",), [True])]
)
@pytest.mark.parametrize("wanted", [False, True])
def test_memory_and_shapes_are_recorded_where_no_times_are_taken_from(capture, wanted, passes, recorded):
    window, optimizer_ = capture(Schedule(0, 1, 1), passes=passes, memory=wanted, shapes=wanted), optimizer()
    for _ in range(window.recipe.steps):
        optimizer_.step()
    assert window.done
    for option in ("profile_memory", "record_shapes"):
        assert [profiler.options[option] for profiler in FakeProfiler.instances] == [
            wanted and each for each in recorded
        ]


def test_the_history_of_memory_comes_first_and_ends_before_any_profiler(capture, tmp_path):
    window, stepper = capture(Schedule(wait=1, warmup=1, active=2), memory=True), optimizer()
    calls = []
    for _ in range(window.recipe.steps):
        stepper.step()
        calls.append((len(FakeProfiler.instances), (tmp_path / "memory" / "rank0.pickle").exists()))
    assert window.done
    assert calls[:5] == [(0, False), (0, False), (0, True), (1, True), (1, True)]
    assert len(calls) == 3 + 1 + 2 * 3
    assert any("gapless memory" in note for note in window.session().notes)


@pytest.mark.parametrize("fails", [False, True])
def test_a_script_that_ends_early_leaves_what_it_has(capture, tmp_path, monkeypatch, fails):
    monkeypatch.setattr(FakeHistory, "fails", fails)
    window, stepper = capture(Schedule(), memory=True), optimizer()
    stepper.step()
    window.stop()
    # What a failed request wrote is not written over by what is left after it.
    assert (tmp_path / "memory" / "rank0.pickle").exists() is not fails
    assert window._history is None


def test_synchronization_events_are_on_where_torch_has_them(capture, monkeypatch):
    monkeypatch.setattr(profiling, "ProfilerConfig", dict)
    capture(Schedule(wait=0))
    assert FakeProfiler.instances[0].options["experimental_config"] == {"enable_cuda_sync_events": True}


def test_an_older_torch_has_none(capture, monkeypatch):
    monkeypatch.setattr(profiling, "ProfilerConfig", lambda: None)
    capture(Schedule(wait=0))
    assert "experimental_config" not in FakeProfiler.instances[0].options


@pytest.mark.parametrize(
    ("steps", "kept"),
    [(0, []), (2, []), (3, [1]), (4, [2]), (5, [3]), (6, [3]), (7, [3, 1]), (9, [3, 3])],
)
def test_an_early_end_keeps_the_whole_steps(capture, steps, kept):
    """After a step that passes, each pass warms up for one and records three."""
    window, stepper = capture(Schedule(wait=1, warmup=1, active=3)), optimizer()
    for _ in range(steps):
        stepper.step()
    window.stop()
    window.stop()
    assert [path.read_text() for path in window.saved] == [f"{number} steps" for number in kept]
    assert all(profiler.ended for profiler in FakeProfiler.instances)
    partial = steps in (3, 4)
    assert any("the script ended after" in note for note in window.notes) is partial


LIST = "rank0.files"


def test_what_an_earlier_run_wrote_is_removed_and_nothing_else(capture, tmp_path):
    earlier, weight = capture(Schedule(wait=0, warmup=1, active=1, repeat=2)), optimizer()
    for _ in range(8):
        weight.step()
    earlier.stop()
    assert len(earlier.saved) == 4
    unrelated = ("times/rank01.pt.trace.json.gz", "times/rank0.5.pt.trace.json.gz", "times/rank0.txt")
    for name in unrelated:
        (tmp_path / name).write_text("old")
    capture(Schedule())
    assert files(tmp_path) == sorted(unrelated)


@pytest.mark.parametrize("name", ["times/rank0.pt.trace.json.gz", "memory/rank0.pickle", LIST])
def test_what_is_in_the_way_is_kept(capture, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("not ours")
    with pytest.raises(UsageError, match="is in the way"):
        capture(Schedule(), memory=True)
    assert (tmp_path / name).read_text() == "not ours"


def test_a_list_that_names_other_files_removes_none(capture, tmp_path):
    head = profiling._LIST
    (tmp_path / "kept.txt").write_text("not ours")
    (tmp_path / "in").mkdir()
    names = ("../kept.txt", "kept.txt", str(tmp_path / "kept.txt"), "times/../../kept.txt", "\0")
    (tmp_path / "in" / LIST).write_text("\n".join([head, *names]))
    Profiling(
        Recipe(tmp_path / "in"), ProfiledDevice("x", CPU, FakeProfiler, FakeHistory), StepEnds()
    ).recipe.clear()
    assert (tmp_path / "kept.txt").read_text() == "not ours"


def test_a_full_disk_is_reported_and_does_not_fail_the_script(capture, monkeypatch):
    def full(self: Any, path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FakeProfiler, "export_chrome_trace", full)
    window, stepper = capture(Schedule(wait=0, warmup=1, active=1)), optimizer()
    for _ in range(4):
        stepper.step()
    assert window.saved == []
    assert window.notes[0].startswith("cannot write ")
    assert window.notes[0].endswith("No space left on device")
    assert window.why_nothing() in window.notes


def test_stopping_the_script(capture):
    class WhenDone(Watcher):
        def enough(self, mark):
            return window.done

    window, stepper = capture(Schedule(wait=0, warmup=1, active=1), Stopper(WhenDone())), optimizer()
    for _ in range(3):
        stepper.step()
    with pytest.raises(EnoughSteps):
        stepper.step()


# Where steps end --------------------------------------------------------------------------------------------


def test_optimizers_that_take_turns_make_one_step(capture):
    report, first, second = capture(Schedule()), optimizer(), optimizer(torch.optim.Adam)
    for _ in range(5):
        first.step()
        second.step()
    assert report.steps == pytest.approx(5, abs=1)


def test_optimizers_that_step_in_backward_make_one_step(capture):
    report = capture(Schedule())
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)])
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
    assert report.steps == 4


def test_a_pass_that_autograds_own_thread_runs_is_of_who_asked_for_it(capture):
    report, stepper = capture(Schedule()), optimizer()

    class Asked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            _thread.start_new_thread(lambda: (stepper.step(), done.set()), ())
            assert done.wait(60)
            return gradient

    for _ in range(3):
        done = threading.Event()
        Asked.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert report.steps == 3


def test_the_users_step_calls_decide(capture):
    window = capture(Schedule())
    for _ in range(4):
        gapless.step()
    assert window.steps == 4
    window.stop()
    gapless.step()
    assert window.steps == 4


def test_the_users_word_comes_before_the_optimizers(capture):
    report, stepper = capture(Schedule(wait=0, warmup=1, active=8)), optimizer()
    for _ in range(3):
        for _ in range(4):
            stepper.step()
        gapless.step()
    assert report.steps == 4 + 3  # four were counted before the word came


def test_the_scripts_own_profiler_steps(capture):
    report, stepper = capture(Schedule(wait=20)), optimizer()
    with torch.profiler.profile(activities=CPU) as own:
        for _ in range(6):
            stepper.step()
            stepper.step()
            own.step()
    assert report.steps == pytest.approx(6, abs=2)


def test_a_step_that_the_scaler_skips(capture):
    report = capture(Schedule())
    stepper = optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(4):
        stepper.param_groups[0]["params"][0].grad = torch.full((2,), float("inf") if step % 2 else 1.0)
        scaler.scale(torch.ones(1))
        scaler.step(stepper)
        scaler.update()
    assert report.steps == 4


def test_a_step_that_is_compiled(capture):
    report, stepper = capture(Schedule()), optimizer()
    step = torch.compile(stepper.step, backend="eager")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            step()
    assert report.steps == 3
    assert not [str(warning.message) for warning in heard if "getpid" in str(warning.message)]


def test_other_threads_end_no_steps(capture):
    report, stepper = capture(Schedule()), optimizer()
    stepper.step()
    other = threading.Thread(target=optimizer().step)
    other.start()
    other.join()
    assert report.steps == 1


def test_nothing_is_left_behind(capture):
    before = (
        torch.profiler.profile.step,
        torch.amp.GradScaler.step,
        torch.autograd.profiler.profile.__enter__,
    )
    window, stepper = capture(Schedule()), optimizer()
    assert torch.profiler.profile.step is not before[0]
    window.stop()
    stepper.step()
    assert window.steps == 0
    after = (
        torch.profiler.profile.step,
        torch.amp.GradScaler.step,
        torch.autograd.profiler.profile.__enter__,
    )
    assert after == before


def test_each_step_end_is_reported_once():
    ends = StepEnds()
    marks = [("optimizer", "A#0"), ("optimizer", "A#0"), ("user", ""), ("optimizer", "A#0"), ("user", "")]
    step_ends = [
        ends(StepMark(kind=kind, tick=at, time=0.0, name=name)) for at, (kind, name) in enumerate(marks)
    ]
    assert step_ends == [True, True, True, False, True]
    assert ends.count == 4


# The script's own profiler ----------------------------------------------------------------------------------


def test_the_scripts_profiler_is_not_advanced(capture, tmp_path):
    window = capture(Schedule(wait=2, warmup=1, active=2))
    ready = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    with torch.profiler.profile(activities=CPU, schedule=schedule, on_trace_ready=ready.append) as own:
        for _ in range(4):
            torch.ones(2).sum()
            own.step()
    own.add_metadata("a", "b")
    assert list(own.key_averages()) == list(own.events()) == ready == []
    assert "CPU" in own.key_averages().table() or own.key_averages().table() == ""
    for name in ("trace.json", "trace.json.gz"):
        own.export_chrome_trace(str(tmp_path / name))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []
    assert b"traceEvents" in gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert "only one profiler can run" in window.session().notes[-1]


def test_the_older_profiler_is_not_advanced(capture):
    window = capture(Schedule(wait=2))
    with torch.autograd.profiler.profile() as own:
        torch.ones(2).sum()
    assert list(own.function_events) == []
    assert len(window.session().notes) == 1


def test_a_script_without_a_profiler_hears_nothing_of_it(capture):
    assert capture(Schedule()).session().notes == ()


def test_a_profiler_that_runs_already(tmp_path):
    machine = ProfiledDevice("CPU", CPU)
    with torch.profiler.profile(activities=CPU), pytest.raises(UsageError, match="already running"):
        Profiling(Recipe(tmp_path), machine, StepEnds()).start()


def test_ours_records_while_the_scripts_stands_still(tmp_path):
    machine = ProfiledDevice("CPU", CPU)
    recorder = Profiling(Recipe(tmp_path, schedule=Schedule(0, 1, 2)), machine, StepEnds()).start()
    stepper = optimizer()
    with torch.profiler.profile(activities=CPU):
        for _ in range(7):
            torch.ones(3).cumsum(0)
            stepper.step()
    recorder.stop()
    for path, frames in zip(recorder.saved, (False, True), strict=True):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = [event.get("name") for event in events]
        assert names.count("aten::cumsum") == 2
        assert {"ProfilerStep#1", "ProfilerStep#2"} <= set(names)
        assert any(event.get("cat") == "python_function" for event in events) is frames


class FakeEvent:
    """Ends a step 2 ms after the one before it, the first two 50 ms after."""

    times: ClassVar[list[float]] = []

    def record(self) -> None:
        self.time = (self.times[-1] if self.times else 0) + (50 if len(self.times) < 2 else 2)
        self.times.append(self.time)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: FakeEvent) -> float:
        return later.time - self.time


@pytest.mark.parametrize(("wait", "expected"), [(5, 2_000_000), (2, 0)])
def test_the_length_of_a_step_before_the_profiler_is_in_its_files(tmp_path, wait, expected):
    FakeEvent.times.clear()
    machine = ProfiledDevice("CPU", CPU, make_event=FakeEvent)
    recorder = Profiling(Recipe(tmp_path, schedule=Schedule(wait, 1, 1)), machine, StepEnds()).start()
    stepper = optimizer()
    for _ in range(wait + 4):
        stepper.step()
    recorder.stop()
    assert len(recorder.saved) == 2
    for path in recorder.saved:
        facts = read(str(path)).facts
        assert (facts.by_gapless, facts.unrecorded_step) == (True, expected)
    assert len(FakeEvent.times) == wait  # recorded steps are not marked


# What is said -----------------------------------------------------------------------------------------------


def test_the_session(capture):
    window, stepper = capture(Schedule()), optimizer()
    stepper.step()
    session = window.session(script=("train.py",), ending=Ending(how="exit", status=3))
    assert session.environment.device == "NVIDIA Nothing"
    assert not session.environment.emulated
    assert (session.script, session.ending.status) == (("train.py",), 3)


def test_why_there_is_nothing(capture):
    recording, stepper = capture(Schedule(wait=5, warmup=2)), optimizer()
    assert "no step was seen" in recording.why_nothing()
    assert "gapless.step()" in recording.why_nothing()
    stepper.step()
    assert recording.why_nothing() == (
        "nothing was recorded: the script ended after 1 step, but recording starts after 7 (wait and warmup)"
    )


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"warmup": 0}, {"active": 0}, {"repeat": 0}])
def test_schedules_that_make_no_sense(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        Schedule(**wrong)


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="needs an NVIDIA or AMD GPU") as caught_error:
        profiling.machine()
    assert "gapless check" in str(caught_error.value)
    assert len(str(caught_error.value).splitlines()) <= 2


def test_a_torch_that_records_no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: set(CPU))
    with pytest.raises(UsageError, match="lacks CUPTI"):
        profiling.machine()


def test_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Something")
    both = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: both)
    machine = profiling.machine()
    assert machine.device == "NVIDIA Something"
    assert set(machine.activities) == both
