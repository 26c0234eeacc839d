"""The steps of a trace, and which of its device work is what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_profiles import traces
from trace_builder import Trace

from gapless.analyze.profile.building import find_recording
from gapless.analyze.profile.kernels import longest_kernels
from gapless.analyze.profile.launches import count_launches
from gapless.analyze.profile.memory_curve import memory_use
from gapless.analyze.profile.split import mean_occupancy, sm_efficiency, split_time, utilization
from gapless.analyze.profile.trace_steps import (
    StepSpans,
    busy_spans,
    covered_time,
    find_steps,
    is_communication,
    main_device,
)
from gapless.analyze.profile.training_phases import find_phases
from gapless.trace.timeline import Timeline

SGD = "Optimizer.step#SGD.step"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def micros(steps: StepSpans) -> list[tuple[int, int]]:
    return [(int(a) // 1000, int(b) // 1000) for a, b in zip(steps.start, steps.end, strict=True)]


def steps_of(trace: Trace, device: int = 0) -> StepSpans:
    return find_steps(trace.timeline(), device)


def loop(dialect: str = "new") -> Trace:
    """Three steps of 100 µs; the kernel of the first ends in the second."""
    trace = Trace(dialect=dialect)  # type: ignore[arg-type]
    for number in range(3):
        trace.step(number, number * 100, 100)
        trace.launch("gemm", number * 100 + 10, kernel=(number * 100 + 50, 80 if number == 0 else 20))
    return trace


# Steps of the profiler --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_a_step_lasts_until_its_last_kernel_and_the_next_begins_there(dialect: str) -> None:
    steps = steps_of(loop(dialect))
    assert micros(steps) == [(0, 130), (130, 200), (200, 300)]
    assert steps.source == "ProfilerStep"
    assert steps.names == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert steps.total == 300_000


def test_the_first_step_begins_when_what_was_launched_before_it_is_done() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(10, 50))
    trace.step(1, 40, 60)
    trace.launch("gemm", 50, kernel=(70, 10))
    assert micros(steps_of(trace)) == [(60, 100)]


def test_other_devices_do_not_put_the_first_step_off() -> None:
    trace = Trace()
    trace.kernel("gemm", 0, 65, device=1)
    trace.step(1, 40, 60)
    trace.launch("gemm", 50, kernel=(70, 10))
    assert micros(steps_of(trace)) == [(40, 100)]


def test_copies_of_the_steps_count_once() -> None:
    trace = loop()
    for event in [e for e in trace.events if e["name"].startswith("ProfilerStep")]:
        copy = {**event, "cat": "gpu_user_annotation", "pid": 0, "tid": 7, "ts": event["ts"] - 0.001}
        trace.raw(**copy)
        trace.raw(**{**event, "cat": "cpu_op"})
    assert micros(steps_of(trace)) == [(0, 130), (130, 200), (200, 300)]


def test_a_last_step_without_device_work_is_left_out_and_said() -> None:
    trace = loop()
    trace.step(3, 300, 100)
    steps = steps_of(trace)
    assert len(steps.names) == 3
    assert steps.notes[0].startswith("ProfilerStep#3 left out")


@pytest.mark.parametrize(("kernels", "kept"), [(8, 2), (7, 1)])
def test_a_last_step_that_lacks_a_fifth_of_its_kernels_is_left_out(kernels: int, kept: int) -> None:
    trace = Trace()
    for number, count in enumerate((10, kernels)):
        trace.step(number, number * 100, 100)
        for place in range(count):
            trace.launch("relu", number * 100 + place * 8, kernel=(number * 100 + place * 8 + 6, 1))
    assert len(steps_of(trace).names) == kept


def test_where_most_work_is_not_linked_to_its_launch_every_step_stays() -> None:
    trace = loop()
    trace.step(3, 300, 100)
    for place in range(10):
        trace.kernel("relu", 300 + place * 5, 2)
    assert len(steps_of(trace).names) == 4


def test_only_the_work_of_the_device_stretches_its_steps() -> None:
    trace = loop()
    trace.launch("gemm", 20, kernel=(30, 500), device=1)
    assert micros(find_steps(trace.timeline(), 0))[0] == (0, 130)
    assert micros(find_steps(trace.timeline(), 1))[0] == (0, 530)


# Other marks ------------------------------------------------------------------------------------------------


def train(trace: Trace, at: int, optimizers: tuple[str, ...] = (SGD,)) -> None:
    """An iteration of 100 µs: a kernel, then these optimizers, 10 µs each, right behind one another."""
    trace.launch("gemm", at + 10, kernel=(at + 20, 30))
    for place, name in enumerate(optimizers):
        start = at + 70 + place * 12
        trace.annotation(name, start, 10)
        trace.launch("adam", start + 2, kernel=(start + 8, 1))


@pytest.mark.parametrize("dialect", ["new", "old"])
def test_between_the_ends_of_optimizer_steps(dialect: str) -> None:
    trace = Trace(dialect=dialect)  # type: ignore[arg-type]
    for number in range(4):
        train(trace, number * 100)
    steps = steps_of(trace)
    assert steps.source == SGD
    assert steps.names == ("1", "2", "3")
    first = micros(steps)[0][0]
    assert [(a - first, b - first) for a, b in micros(steps)] == [(0, 100), (100, 200), (200, 300)]


@pytest.mark.parametrize("second", [SGD, "Optimizer.step#Adagrad.step"])
def test_optimizers_behind_one_another_step_once(second: str) -> None:
    trace = Trace()
    for number in range(4):
        train(trace, number * 100, (SGD, second))
    steps = steps_of(trace)
    assert [b - a for a, b in micros(steps)] == [100, 100, 100]
    assert steps.source == second


def test_an_optimizer_around_another_steps_once() -> None:
    trace = Trace()
    for number in range(4):
        train(trace, number * 100)
        trace.annotation("Optimizer.step#Wrapper.step", number * 100 + 68, 14)
    assert len(steps_of(trace).names) == 3
    assert steps_of(trace).source == "Optimizer.step#Wrapper.step"


def test_the_optimizer_that_comes_least_often_closes_an_iteration() -> None:
    trace = Trace()
    for number in range(12):
        train(trace, number * 100, ("Optimizer.step#RMSprop.step",) if number % 3 else (SGD,))
    steps = steps_of(trace)
    assert steps.source == SGD
    assert [b - a for a, b in micros(steps)] == [300, 300, 300]


def test_two_optimizer_steps_are_no_series() -> None:
    trace = Trace()
    train(trace, 0)
    train(trace, 100)
    assert steps_of(trace).source == "span"


def test_optimizers_of_the_cpu_are_no_steps_of_the_gpu() -> None:
    trace = Trace()
    for number in range(4):
        trace.annotation(SGD, number * 100, 10)
    trace.launch("gemm", 500, kernel=(510, 10))
    assert steps_of(trace).source == "span"


@pytest.mark.parametrize("name", ["train_step", "Iteration {}", "batch #{}", "step[DECODE bs={}]", "Step {}"])
def test_annotations_that_say_they_are_iterations(name: str) -> None:
    trace = Trace()
    for number in range(3):
        trace.annotation(name.format(number), number * 100, 80)
        trace.launch("gemm", number * 100 + 10, kernel=(number * 100 + 20, 30))
    steps = steps_of(trace)
    assert micros(steps) == [(0, 80), (100, 180), (200, 280)]
    assert steps.names[-1] == name.format(2)


@pytest.mark.parametrize(
    "name", ["attention", "## forward ##", "step_size", "batch_norm", "Torch-Compiled Region"]
)
def test_other_annotations_are_no_steps(name: str) -> None:
    trace = Trace()
    for number in range(3):
        trace.annotation(name, number * 100, 80)
        trace.launch("gemm", number * 100 + 10, kernel=(number * 100 + 20, 30))
    assert steps_of(trace).source == "span"


def test_from_one_batch_to_the_next() -> None:
    trace = Trace()
    for number in range(5):
        trace.annotation(BATCH, number * 100, 20)
        trace.launch("gemm", number * 100 + 30, kernel=(number * 100 + 40, 30))
    steps = steps_of(trace)
    assert steps.source == BATCH
    assert micros(steps) == [(0, 100), (100, 200), (200, 300), (300, 400)]


def test_batches_asked_for_ahead_of_the_work_are_no_steps() -> None:
    trace = Trace()
    for number in range(5):
        trace.annotation(BATCH, number * 100, 20)
    for number in range(6):
        trace.launch("gemm", 330 + number * 10, kernel=(340 + number * 10, 5))
    assert steps_of(trace).source == "span"


def test_the_whole_trace_is_one_step() -> None:
    trace = Trace()
    trace.operator("aten::randn", 0, 40)
    trace.launch("gemm", 60, kernel=(70, 30))
    trace.operator("aten::item", 100, 60)
    steps = steps_of(trace)
    assert (steps.source, steps.names, micros(steps)) == ("span", ("1",), [(0, 160)])


def test_set_up_that_takes_most_of_the_trace_is_no_part_of_it() -> None:
    trace = Trace()
    trace.operator("aten::randn", 0, 400)
    trace.launch("gemm", 450, kernel=(470, 30))
    assert micros(steps_of(trace)) == [(450, 500)]


# What is what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        NCCL,
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*)",
        "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>()",
        "multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "one_shot_all_reduce_kernel",
        "oneccl_allreduce_small",
        "void deep_ep::intranode::dispatch<8, 768, 8192>()",
    ],
)
def test_kernels_that_communicate(name: str) -> None:
    assert is_communication(kernels(name)).tolist() == [True]


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "triton_poi_fused_add_all_reduce_wait_tensor_3",
        "_finalize_matmul_scatter_bf16",
        "volta_sgemm_128x32_nn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>",
        "accumulate_grads",
        "reduce_segments",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert is_communication(kernels(name)).tolist() == [False]


def kernels(*names: str, **args: object) -> Timeline:
    trace = Trace()
    for place, name in enumerate(names):
        trace.launch(name, place * 20, kernel=(place * 20 + 10, 5), **args)
    return trace.timeline()


def test_a_recorded_collective_communicates_whatever_its_name() -> None:
    timeline = kernels("mystery", **{"Collective name": "allreduce", "Process Group Name": "0"})
    assert is_communication(timeline).tolist() == [True]


def test_a_copy_does_not_communicate() -> None:
    trace = Trace()
    trace.copy("DtoD (Device -> Device) all_gather", 0, 5, copy=(5, 5))
    assert is_communication(trace.timeline()).tolist() == [False]


def test_busy_is_computing_and_copying_but_not_communicating() -> None:
    trace = Trace()
    trace.kernel("gemm", 0, 10)
    trace.kernel("relu", 5, 15, stream=9)
    trace.memcpy("HtoD", 20, 5)
    trace.kernel(NCCL, 24, 100, stream=11)
    trace.memset(50, 1)
    trace.kernel("gemm", 0, 500, device=3)
    start, end = busy_spans(trace.timeline(), 0)
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == [(0, 25_000), (50_000, 51_000)]


def test_the_main_device_is_the_busiest() -> None:
    trace = Trace()
    for device, length in ((0, 5), (2, 30), (5, 30)):
        trace.kernel("gemm", 0, length, device=device)
    trace.kernel(NCCL, 0, 100, device=0)
    assert main_device(trace.timeline()) == 2


def test_no_device_work_no_device() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 10)
    assert main_device(trace.timeline()) == -1
    assert find_steps(trace.timeline(), -1).total == 10_000


def test_work_knows_its_launch() -> None:
    trace = Trace()
    trace.launch("gemm", 0, kernel=(10, 5))
    graph = trace.call("cudaGraphLaunch", 20, 5)
    trace.kernel("relu", 30, 1, correlation=graph)
    trace.kernel("relu", 31, 1, correlation=graph)
    trace.kernel("lost", 40, 1, correlation=999_999)
    timeline = trace.timeline()
    calls = [timeline.names[timeline.host.name[row]] if row >= 0 else "" for row in timeline.launchers]
    assert calls == ["cudaLaunchKernel", "cudaGraphLaunch", "cudaGraphLaunch", ""]


def bare(kind: str) -> Timeline:
    trace = Trace()
    if kind == "device":
        trace.kernel("gemm", 0, 10)
        trace.memcpy("HtoD", 20, 10)
    if kind == "host":
        trace.operator("aten::mm", 0, 10)
    if kind == "call":
        trace.call("cudaLaunchKernel", 0, 10)
    if kind == "moment":
        trace.launch("gemm", 0, 0, kernel=(0, 0))
    trace.memory(5, 100)
    return trace.timeline()


@pytest.mark.parametrize("kind", ["device", "host", "call", "moment"])
def test_every_number_exists_for_a_bare_trace(kind: str) -> None:
    timeline = bare(kind)
    device = main_device(timeline)
    steps = find_steps(timeline, device)
    total = steps.total
    assert total == {"device": 30_000, "host": 10_000, "call": 10_000, "moment": 0}[kind]
    parts = split_time(timeline, steps, device)
    assert sum(getattr(parts, name) for name in parts.__struct_fields__) == total
    assert sum(phase.host for phase in find_phases(timeline, steps, device)) == total
    assert count_launches(timeline, steps, device).count == {"device": 2}.get(kind, 0)
    assert len(longest_kernels(timeline, steps, device)) == (kind == "device")
    assert utilization(timeline, steps, device) == (pytest.approx(1 / 3) if kind == "device" else -1)
    assert sm_efficiency(timeline, steps, device) == (pytest.approx(1 / 3) if kind == "device" else -1)
    assert mean_occupancy(timeline, steps, device) == (38 if kind == "device" else -1)
    assert memory_use(timeline, steps, device).peak_allocated == 100
    assert find_recording(timeline, steps).stacks == ""


# Laws -------------------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8)


@given(SPANS, st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 30)), max_size=5))
def test_covered_counts_every_moment(gaps: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    bounds = np.cumsum([value for pair in gaps for value in pair]).astype(np.int64)
    start, end = bounds[::2], bounds[1::2]
    moments = {time for a, b in zip(start.tolist(), end.tolist(), strict=True) for time in range(a, b)}
    low = np.array([a for a, _ in windows], np.int64)
    high = np.array([a + b for a, b in windows], np.int64)
    expected = [len(moments & set(range(a, a + b))) for a, b in windows]
    assert covered_time(start, end, low, high).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.booleans().flatmap(traces))
def test_steps_are_disjoint_ordered_and_within_the_trace(trace: Trace) -> None:
    timeline = trace.timeline()
    steps = find_steps(timeline, 0)
    assert (steps.start <= steps.end).all()
    assert (steps.end[:-1] <= steps.start[1:]).all()
    assert len(steps.names) == len(steps.start) >= 1
    assert steps.start[0] >= timeline.span[0]
    assert steps.end[-1] <= timeline.span[1]


# Public traces ----------------------------------------------------------------------------------------------


def test_lengths_are_those_of_the_tensorboard_plugin(
    public_trace: Callable[[str], Timeline], tensorboard: list[dict[str, str]]
) -> None:
    compared = 0
    for row in tensorboard:
        timeline = public_trace(row["trace"])
        steps = find_steps(timeline, int(row["device"]))
        if steps.source != "ProfilerStep" or "trace_compare-test" in row["trace"]:
            continue  # the latter holds one launch for its 17 kernels: too few to drop a step for
        lengths = [float(length) for length in row["steps"].split()]
        assert (steps.end - steps.start).tolist() == pytest.approx([x * 1000 for x in lengths], abs=600)
        compared += 1
    assert compared == 26
