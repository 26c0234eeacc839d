"""The error messages of CUDA and torch for captures, and the exceptions that carry them.

Messages of torch 2.13 and of the CUDA runtime: ``c10/cuda/CUDAException.cpp``,
``aten/src/ATen/cuda/CUDAGraph.cpp``, ``CUDAGraphsUtils.cuh`` and ``CUDAGeneratorImpl.cpp``,
``torch/csrc/autograd/input_buffer.cpp``.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.emulation.support.cuda_errors import accelerator_error


class Failure(NamedTuple):
    """An error of the CUDA runtime: its number, name and message."""

    code: int
    name: str
    words: str


UNSUPPORTED = Failure(
    900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"
)
INVALIDATED = Failure(
    901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"
)
UNJOINED = Failure(904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work")
ISOLATION = Failure(
    905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"
)
IMPLICIT = Failure(
    906,
    "cudaErrorStreamCaptureImplicit",
    "operation would make the legacy stream depend on a capturing blocking stream",
)
CAPTURED_EVENT = Failure(
    907,
    "cudaErrorCapturedEvent",
    "operation not permitted on an event last recorded in a capturing stream",
)
ILLEGAL_STATE = Failure(
    401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"
)

DEFAULT_STREAM = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
    "them on the default stream.)"
)
OTHER_STREAM = "Capture must end on the same stream it began on."
OWNS_ONE = (
    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
)
NOT_CAPTURED = "Called CUDAGraph::replay without a preceding successful capture."
NO_POOL = "Called CUDAGraph::pool() without a preceding successful capture."
EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device "
    "or stream."
)
OTHER_SEED = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
    "the original seed."
)
"""Since torch 2.10."""
UNPINNED = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
"""Since torch 2.11."""
GENERATOR = "Attempt to increase offset for a CUDA generator not in capture mode."
NOT_INSTANTIATED = "capture_end() must have been called before calling instantiate"
INSTANTIATED_TWICE = "instantiate() is intended to be called by the user only when keep_graph=true"
NO_RAW = (
    "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
)
NO_RAW_YET = "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
NO_EXEC_YET = "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called"
NO_DEBUG = "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"
MODES = ("global", "thread_local", "relaxed")
UNKNOWN_MODE = "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {}"


def error(failure: Failure) -> RuntimeError:
    """Return the exception that torch raises for `failure`."""
    return accelerator_error(
        f"CUDA error: {failure.words}\n"
        f"Search for `{failure.name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
        "group__CUDART__TYPES.html for more information.\n"
        "For more detailed error information, run with CUDA_LOG_FILE=stderr\n",
        failure.code,
    )


def not_while_capturing(attempt: str) -> RuntimeError:
    """Return the error of torch's check that keeps a call out of captures."""
    return RuntimeError(
        f"{attempt} during CUDA graph capture. If you need this call to be captured, please file an issue. "
        "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
    )


def stale_stream(node: str) -> RuntimeError:
    """Return autograd's error for a node created on the default stream before the capture."""
    return RuntimeError(
        f"During CUDA graph capture, autograd node '{node}' has a stale reference to the default stream "
        "(stream 0) from warmup. This will invalidate the capture because cudaStreamWaitEvent on the default "
        "stream pulls a non-capturing stream into the graph.\nTo fix, either:\n"
        "  (a) Run warmup on the same stream that capture will use, or\n"
        "  (b) Delete references to the loss / autograd graph (e.g. `del loss`) before capture, or\n"
        "  (c) Call torch.autograd.graph.set_override_stale_capture_stream(True) to automatically redirect "
        "stale nodes to the capturing stream."
    )
