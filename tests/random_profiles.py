"""A hypothesis strategy that draws random traces, for laws that hold for every profile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from trace_builder import Trace

_TIMES = st.integers(0, 400)
_LENGTHS = st.integers(0, 60)
_NAMES = st.sampled_from(
    [
        "aten::mm",
        "aten::to",
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "autograd::engine::evaluate_function: MmBackward0",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "gloo:all_reduce",
    ]
)
_KERNELS = st.sampled_from(["gemm", "relu", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"])
_THREADS = st.sampled_from([4000, 4001])
_HOST = st.tuples(_NAMES, _TIMES, _LENGTHS, _THREADS)
_DEVICE = st.tuples(
    st.sampled_from(["kernel", "memcpy", "memset"]),
    _KERNELS,
    _TIMES,
    _LENGTHS,
    _TIMES,
    st.sampled_from([7, 9]),
)


@st.composite
def traces(draw: Any, steps: bool = True) -> Trace:
    """A profile of whole microseconds: operators, marks, launches, device work, in no sensible order."""
    trace = Trace()
    trace.operator("aten::zeros", 0, 1)
    for name, start, length, thread in draw(st.lists(_HOST, max_size=12)):
        trace.operator(name, start, length, thread=thread)
    for kind, name, start, length, launched, stream in draw(st.lists(_DEVICE, min_size=1, max_size=12)):
        begin = max(start, launched)
        number = trace.call("cudaLaunchKernel", launched, 3, thread=4000)
        if kind == "kernel":
            trace.kernel(name, begin, length, correlation=number, stream=stream)
        elif kind == "memcpy":
            trace.memcpy("HtoD (Pageable -> Device)", begin, length, correlation=number, stream=stream)
        else:
            trace.memset(begin, length, correlation=number, stream=stream)
    if steps:
        cuts = sorted(draw(st.sets(st.integers(0, 420), min_size=2, max_size=4)))
        for number, (low, high) in enumerate(pairwise(cuts)):
            trace.step(number, low, high - low)
    return trace
