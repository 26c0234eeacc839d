"""Collectives by name and group."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trace_builder import Trace

from gapless.analyze.profile.communication import (
    MAX_KERNELS_KEPT,
    UNNAMED_COLLECTIVE,
    find_collectives,
    normalize_collective,
)
from gapless.model.profile import Collectives
from gapless.trace.timeline import Ints, Timeline, union

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def recorded(name: str, group: str, elements: int) -> dict[str, object]:
    """What the profiler says of a collective's kernel."""
    return {"Collective name": name, "Process Group Name": group, "In msg nelems": elements}


def collectives_of(trace: Trace, device: int = 0) -> dict[tuple[str, str], Collectives]:
    return {
        (collective.name, collective.group): collective
        for collective in find_collectives(trace.timeline(), device)
    }


def total(start: Ints, end: Ints) -> int:
    """How much time at least one of these spans covers."""
    begin, finish = union(start, end)
    return int((finish - begin).sum())


class TestNames:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            (ALL_REDUCE, "all_reduce"),
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
            ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum", "all_reduce"),
            ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "all_reduce"),
            ("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 2>()", "all_reduce"),
            ("multimem_all_reduce_kernel", "all_reduce"),
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", "reduce_scatter"),
            ("ncclDevKernel_AllGather_RING_LL()", "all_gather"),
            ("ncclKernel_AllGather_RING_LL_Sum_int8_t()", "all_gather"),
            ("ncclDevKernel_Broadcast_RING_LL()", "broadcast"),
            ("ncclDevKernel_Reduce_Sum_f32_RING_LL()", "reduce"),
            (SEND_RECV, "send_recv"),
            (GENERIC, ""),
            ("nccl:all_to_all", "all_to_all"),
            ("c10d::alltoall_base_", "all_to_all"),
            ("nccl:_all_gather_base", "all_gather"),
            ("c10d::_allgather_base_", "all_gather"),
            ("nccl:_reduce_scatter_base", "reduce_scatter"),
            ("nccl:send 0->1", "send_recv"),
            ("c10d::recv_", "send_recv"),
            ("nccl:all_reduce_barrier", "barrier"),
            ("c10d::scatter_", "scatter"),
            ("nccl:gather", "gather"),
            ("nccl:coalesced", ""),
        ],
    )
    def test_kernels_and_operators_of_all_ages(self, name: str, kind: str) -> None:
        assert normalize_collective(name) == kind


class TestCollectives:
    def test_by_name_and_group_in_order(self) -> None:
        trace = Trace()
        trace.kernel(ALL_REDUCE, 50, 10, stream=20, **recorded("allreduce", "1", 400))
        trace.kernel(ALL_REDUCE, 10, 30, stream=20, **recorded("allreduce", "1", 300))
        trace.kernel(ALL_REDUCE, 5, 20, stream=24, **recorded("allreduce", "2", 7))
        trace.kernel("gemm", 0, 100)
        collectives = collectives_of(trace)
        assert set(collectives) == {("all_reduce", "1"), ("all_reduce", "2")}
        first = collectives["all_reduce", "1"]
        assert first.length == (30_000, 10_000)
        assert first.elements == (300, 400)
        assert first.start[1] - first.start[0] == 40_000

    def test_of_one_device(self) -> None:
        trace = Trace()
        trace.kernel(ALL_REDUCE, 0, 5, device=0)
        trace.kernel(ALL_REDUCE, 0, 5, device=1)
        trace.kernel(ALL_REDUCE, 9, 5, device=1)
        assert len(collectives_of(trace, 1)["all_reduce", ""].start) == 2

    def test_none(self) -> None:
        trace = Trace()
        trace.kernel("gemm", 0, 10)
        assert find_collectives(trace.timeline(), 0) == ()
        assert find_collectives(trace.timeline(), 3) == ()

    @pytest.mark.parametrize("dialect", ["new", "middle", "old"])
    @pytest.mark.parametrize(("kernel", "around"), [(SEND_RECV, "all_to_all"), (GENERIC, "reduce_scatter")])
    def test_the_launching_operator_tells_what_the_kernel_does_not(
        self, dialect: str, kernel: str, around: str
    ) -> None:
        trace = Trace(dialect=dialect)  # type: ignore[arg-type]
        trace.operator("All2All_Pooled_Req", 0, 100)
        trace.operator("record_param_comms", 1, 50)
        trace.operator(f"nccl:{around}", 2, 40)
        trace.launch(kernel, 10, kernel=(120, 30), stream=20)
        assert set(collectives_of(trace)) == {(around, "")}

    def test_a_barrier_is_an_all_reduce_under_its_own_operator(self) -> None:
        trace = Trace()
        trace.operator("c10d::barrier", 0, 100)
        trace.operator("nccl:all_reduce", 2, 40)
        trace.launch(ALL_REDUCE, 10, kernel=(120, 30), stream=20)
        assert set(collectives_of(trace)) == {("barrier", "")}

    def test_a_range_of_the_user_tells_nothing(self) -> None:
        trace = Trace()
        trace.annotation("my all_gather experiment", 0, 100)
        trace.launch(SEND_RECV, 10, kernel=(120, 30), stream=20)
        assert set(collectives_of(trace)) == {("send_recv", "")}

    def test_kernels_launched_before_the_recording_are_as_the_others_on_their_stream(self) -> None:
        trace = Trace()
        trace.kernel(GENERIC, 0, 5, stream=20)
        trace.operator("nccl:all_gather", 10, 20)
        number = trace.call("cudaLaunchKernel", 12, 5)
        trace.kernel(GENERIC, 30, 5, correlation=number, stream=20, **recorded("allgather", "3", 64))
        collectives = collectives_of(trace)
        assert set(collectives) == {("all_gather", "3")}
        assert collectives["all_gather", "3"].elements == (-1, 64)

    def test_unless_those_differ(self) -> None:
        trace = Trace()
        trace.kernel(GENERIC, 0, 5, stream=20)
        for at, name in ((10, "nccl:all_gather"), (40, "nccl:broadcast")):
            trace.operator(name, at, 20)
            trace.launch(GENERIC, at + 2, kernel=(at + 22, 5), stream=20)
        assert {name for name, _ in collectives_of(trace)} == {UNNAMED_COLLECTIVE, "all_gather", "broadcast"}

    def test_streams_replace_unrecorded_groups(self) -> None:
        trace = Trace()
        trace.kernel(ALL_REDUCE, 0, 5, stream=20)
        trace.kernel(ALL_REDUCE, 10, 5, stream=24)
        trace.kernel("ncclDevKernel_AllGather_RING_LL()", 20, 5, stream=24)
        assert set(collectives_of(trace)) == {
            ("all_reduce", "stream 20"),
            ("all_reduce", "stream 24"),
            ("all_gather", ""),
        }

    def test_the_first_ones_are_kept(self) -> None:
        trace = Trace()
        for number in range(MAX_KERNELS_KEPT + 5):
            trace.kernel(ALL_REDUCE, 10 * number, number % 7 + 1)
        collectives = collectives_of(trace)["all_reduce", ""]
        assert (
            len(collectives.start) == len(collectives.length) == len(collectives.elements) == MAX_KERNELS_KEPT
        )
        assert collectives.length[:9] == tuple(1000 * (number % 7 + 1) for number in range(9))


class TestPublicTraces:
    """Numbers counted in the files themselves, with a JSON reader and nothing else."""

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (
                "param-dlrm_kineto-worker2_step_12.1694128201554-0038",
                {("all_reduce", ""): 3, ("all_to_all", ""): 5},
            ),
            ("torchrec-log-resnet18-pid85866-fa7b", {("all_to_all", ""): 12}),
            (
                "torchrec-trace-sst_long_a2a_optimizer_2-pid24051-5c94",
                {("all_reduce", ""): 15, ("all_to_all", ""): 16},
            ),
            (
                "HolisticTraceAnalysis-nccl_parser_config-nccl_data-5a2e",
                {("all_reduce", "0"): 15, ("broadcast", "0"): 6},
            ),
            (
                "TraceLens-mi300-resnet_act_checkpoint-7ad4",
                {("all_reduce", "0"): 6, ("broadcast", "0"): 6, (UNNAMED_COLLECTIVE, "0"): 5},
            ),
            (
                "HolisticTraceAnalysis-df_index_resolver-df_index_resolver-9a5a",
                {("all_reduce", ""): MAX_KERNELS_KEPT},
            ),
        ],
    )
    def test_counts(
        self, public_trace: Callable[[str], Timeline], name: str, expected: dict[tuple[str, str], int]
    ) -> None:
        timeline = public_trace(name)
        some = find_collectives(timeline, int(timeline.work.device[0]))
        assert {
            (collectives.name, collectives.group): len(collectives.start) for collectives in some
        } == expected

    def test_sizes(self, public_trace: Callable[[str], Timeline]) -> None:
        some = find_collectives(public_trace("HolisticTraceAnalysis-nccl_parser_config-nccl_data-5a2e"), 0)
        reduce = next(reduce for reduce in some if reduce.name == "all_reduce")
        assert reduce.elements[:5] == (2049000, 7875584, 6563840, 6637568, 2431040)
