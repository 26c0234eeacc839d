"""The phases of training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_profiles import traces
from trace_builder import Dialect, Trace

from gapless.analyze.profile.trace_steps import busy_spans, covered_time, find_steps, main_device
from gapless.analyze.profile.training_phases import find_phases
from gapless.trace.timeline import Timeline

BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: MmBackward0"
AUTOGRAD = 4001
DIALECTS: tuple[Dialect, ...] = ("new", "middle", "old")


def times(timeline: Timeline) -> dict[str, tuple[int, int, int]]:
    """Host, device and idle microseconds by phase."""
    phases = find_phases(timeline, find_steps(timeline, 0), 0)
    return {
        phase_change.name: (phase_change.host // 1000, phase_change.device // 1000, phase_change.idle // 1000)
        for phase_change in phases
    }


def iteration(dialect: Dialect = "new", vendor: str = "nvidia") -> Trace:
    """Every phase once, ten microseconds apart."""
    trace = Trace(dialect=dialect, vendor=vendor)  # type: ignore[arg-type]
    trace.step(1, 0, 300)
    trace.annotation(BATCH, 0, 40)
    trace.operator("aten::stack", 5, 30)
    trace.operator("aten::to", 50, 20)
    kind = "HtoD (Pageable -> Device)"
    trace.copy(kind, 55, 10, copy=(58, 6))
    trace.operator("aten::mm", 80, 15)
    trace.launch("gemm", 85, 5, kernel=(100, 30))
    trace.operator("aten::relu", 100, 10)
    trace.launch("relu", 102, 5, kernel=(130, 5))
    node = "torch::autograd::AccumulateGrad" if dialect == "old" else NODE
    trace.operator("MmBackward" if dialect == "old" else NODE, 120, 20, thread=AUTOGRAD)
    trace.launch("gemm", 125, 5, kernel=(140, 40), thread=AUTOGRAD)
    trace.operator(node, 150, 10, thread=AUTOGRAD)
    trace.operator("aten::add_", 152, 6, thread=AUTOGRAD)
    trace.launch("add", 153, 3, kernel=(180, 2), thread=AUTOGRAD)
    trace.operator("aten::linalg_vector_norm", 170, 10)
    trace.launch("norm", 172, 3, kernel=(182, 3))
    trace.annotation("Optimizer.step#SGD.step", 190, 30)
    trace.operator("aten::_foreach_add_", 195, 5)
    trace.launch("foreach", 196, 3, kernel=(200, 10))
    trace.annotation("Optimizer.zero_grad#SGD.zero_grad", 230, 20)
    trace.operator("aten::zero_", 232, 5)
    trace.launch("fill", 233, 3, kernel=(240, 4))
    return trace


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_phase(dialect: Dialect) -> None:
    phases = times(iteration(dialect).timeline())
    assert {name: host for name, (host, _, _) in phases.items()} == {
        "loading": 40,
        "transfer": 20,
        "forward": 30,  # from the first operator to the last, Python between them included
        "backward": 40,
        "optimizer": 30,
        "other": 140,  # between phases, clipping, zero_grad, the rest of the step
    }
    assert {name: device for name, (_, device, _) in phases.items()} == {
        "loading": 0,
        "transfer": 6,
        "forward": 35,
        "backward": 42,
        "optimizer": 10,
        "other": 7,
    }
    assert phases["loading"][2] == 40
    assert phases["transfer"][2] == 14
    assert phases["forward"][2] == 20  # the kernel begins at 100, in Python between the operators


def test_a_copy_of_amd() -> None:
    trace = iteration(vendor="amd")
    trace.events = [e for e in trace.events if e["name"] != "Memcpy HtoD (Pageable -> Device)"]
    number = next(e["args"]["correlation"] for e in trace.events if e["name"] == "hipMemcpyWithStream")
    trace.memcpy("HtoD (Host -> Device)", 58, 6, correlation=number)
    assert times(trace.timeline())["transfer"] == (20, 6, 14)


def test_a_copy_inside_another_phase_belongs_to_it() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.annotation(BATCH, 0, 40)
    trace.operator("aten::to", 10, 20)
    trace.copy("HtoD (Pinned -> Device)", 12, 5, copy=(20, 10))
    trace.operator("aten::mm", 50, 10)
    trace.launch("gemm", 52, 5, kernel=(60, 10))
    assert times(trace.timeline()) == {
        "loading": (40, 10, 30),
        "forward": (10, 10, 10),
        "other": (50, 0, 40),
    }


def test_a_copy_to_the_host_is_no_transfer() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.operator("aten::to", 10, 20)
    trace.copy("DtoH (Device -> Pageable)", 12, 5, copy=(20, 10))
    assert times(trace.timeline())["forward"] == (20, 10, 10)


def test_recomputation_belongs_to_backward() -> None:
    trace = iteration()
    trace.operator("aten::mm", 128, 10, thread=AUTOGRAD)
    trace.launch("gemm", 130, 2, kernel=(220, 15), thread=AUTOGRAD)
    phases = times(trace.timeline())
    assert phases["backward"][:2] == (40, 57)
    assert phases["forward"][:2] == (30, 35)


def test_operators_without_a_node_on_the_autograd_thread_are_backward() -> None:
    trace = iteration()
    trace.operator("aten::as_strided", 142, 4, thread=AUTOGRAD)
    assert times(trace.timeline())["backward"][0] == 40


def test_backward_on_the_thread_of_the_loop() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.operator("aten::mm", 10, 10)
    trace.operator(NODE, 30, 10)
    trace.operator("aten::mm", 32, 5)
    trace.launch("gemm", 33, 2, kernel=(40, 10))
    trace.annotation("Optimizer.step#SGD.step", 50, 10)
    phases = times(trace.timeline())
    assert (phases["forward"][0], phases["backward"][:2], phases["optimizer"][0]) == (10, (10, 10), 10)


def test_backward_inside_a_range_that_an_old_file_holds_as_an_operator() -> None:
    trace = Trace(dialect="old")
    trace.step(1, 0, 100)
    trace.annotation("train", 5, 90)
    trace.operator("MmBackward", 30, 10)
    trace.annotation("Optimizer.step#SGD.step", 50, 10)
    phases = times(trace.timeline())
    assert {name: host for name, (host, _, _) in phases.items()} == {
        "forward": 60,
        "backward": 10,
        "optimizer": 10,
        "other": 20,  # the ends of the step, and what lies between backward and optimizer
    }


def test_a_copy_to_the_device_in_backward_is_backward() -> None:
    trace = iteration()
    trace.operator("aten::to", 142, 6, thread=AUTOGRAD)
    trace.copy("HtoD (Pageable -> Device)", 143, 2, copy=(250, 7), thread=AUTOGRAD)
    phases = times(trace.timeline())
    assert phases["backward"][:2] == (40, 49)
    assert phases["transfer"][:2] == (20, 6)


def test_what_an_operator_sends_along_is_no_transfer() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.operator("aten::index", 10, 20)
    trace.copy("HtoD (Pageable -> Device)", 12, 5, copy=(15, 5))
    assert times(trace.timeline())["forward"][:2] == (20, 5)


def test_what_lies_between_the_optimizer_and_the_next_forward_pass_is_neither() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.annotation("Optimizer.step#SGD.step", 10, 30)
    trace.operator("aten::add_", 15, 5)
    trace.operator("aten::mm", 60, 20)
    phases = times(trace.timeline())
    assert {name: host for name, (host, _, _) in phases.items()} == {
        "forward": 20,
        "optimizer": 30,
        "other": 50,
    }


def test_python_between_operators_of_one_phase_goes_on_under_another_thread() -> None:
    trace = Trace()
    trace.step(1, 0, 100)
    trace.operator("aten::mm", 10, 30)
    trace.operator(NODE, 20, 10, thread=AUTOGRAD)
    trace.operator("aten::mm", 60, 20)
    phases = times(trace.timeline())
    assert (phases["forward"][0], phases["backward"][0]) == (60, 10)


def test_a_thread_that_works_ahead_transfers_but_is_not_the_loop() -> None:
    trace = iteration()
    trace.operator("aten::copy_", 85, 30, thread=5000)
    trace.copy("HtoD (Pinned -> Device)", 90, 5, copy=(105, 20), thread=5000, stream=20)
    phases = times(trace.timeline())
    assert phases["transfer"][:2] == (20, 26)
    assert phases["forward"][0] == 30


def test_a_device_that_works_has_no_idle_time_in_any_phase() -> None:
    trace = iteration()
    trace.launch("gemm", 1, 2, kernel=(0, 300), stream=30)
    assert {idle for _, _, idle in times(trace.timeline()).values()} == {0}


def test_inference_has_no_backward() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 10)
    trace.launch("gemm", 2, 5, kernel=(10, 10))
    trace.operator("aten::relu", 20, 10)
    assert times(trace.timeline()) == {"forward": (30, 10, 20)}


@settings(max_examples=80, deadline=None)
@given(st.booleans().flatmap(traces))
def test_phases_add_up(trace: Trace) -> None:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    phases = find_phases(timeline, steps, 0)
    work = timeline.work
    assert sum(estimate.host for estimate in phases) == steps.total
    busy = int(covered_time(*busy_spans(timeline, 0), steps.start, steps.end).sum())
    assert sum(profile.idle for profile in phases) == steps.total - busy
    length = covered_time(steps.start, steps.end, work.start, work.end)
    assert sum(profile.device for profile in phases) == int(length.sum())
    assert all(0 <= phase_change.idle <= phase_change.host for phase_change in phases)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kineto-resnet50_num_workers_0-worker0.1623143089861-9b36", {"backward", "optimizer", "loading"}),
        ("param-linear_kineto-03b8", {"forward", "backward", "optimizer"}),
        ("HolisticTraceAnalysis-nccl_parser_config-nccl_data-5a2e", {"forward", "backward", "optimizer"}),
        ("TraceLens-mi300-resnet_act_checkpoint-7ad4", {"forward", "backward", "optimizer"}),
        (
            "TraceLens-h100-google_owlv2-large-patch14-ensemble-1016001-d242",
            {"forward", "loading", "transfer"},
        ),
        ("segment-anything-fast-amg_example-asdf_True-41e7", {"forward", "transfer"}),
    ],
)
def test_public_traces(public_trace: Callable[[str], Timeline], name: str, expected: set[str]) -> None:
    timeline = public_trace(name)
    device = main_device(timeline)
    steps = find_steps(timeline, device)
    values = {phase.name: phase for phase in find_phases(timeline, steps, device)}
    assert expected <= values.keys()
    assert ("backward" in expected) == ("backward" in values)
    assert sum(value.host for value in values.values()) == steps.total
    if "backward" in expected and "checkpoint" not in name:
        # Twice the work of the forward pass, less what only one of them does.
        assert 1.3 < values["backward"].device / values["forward"].device < 5
