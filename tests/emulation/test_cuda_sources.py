"""Kernels compiled from CUDA sources at run time: launched, not run; the signature tells what they write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.standins import given

if not hasattr(torch.cuda, "_compile_kernel"):
    pytest.skip("this torch compiles no CUDA sources", allow_module_level=True)

SOURCE = """
// __global__ void scale(float* x) {}
template <typename T> __device__ T twice(T x) { return 2 * x; }

extern "C" __global__ __launch_bounds__(256) void scale(
    const float* __restrict__ x, float const* y, float* out, float* sums, float* const kept, int n
) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    out[i] = twice(x[i]);  // sums[i] == 0
    if (kept[i] == 0) out[n - (i + y[i])] = 1;
    sums[i] += x[i];
  }
}
"""


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(EmulatorOptions("h100", programme=True)) as emulator:
        yield emulator


def scale() -> Any:
    return torch.cuda._compile_kernel(SOURCE, "scale", nvcc_options=["-lineinfo"])


def arguments() -> list[Any]:
    return [*(torch.full((8,), float(n), device="cuda") for n in range(1, 6)), 8]


def test_what_it_only_assigns_to_is_zeros_and_the_rest_stays(emulator: Emulator) -> None:
    args = arguments()
    scale()((1, 1, 1), (256, 1, 1), args)
    waits = emulator.recorder.total
    assert [tensor.tolist()[0] for tensor in args[:5]] == [1.0, 2.0, 0.0, 4.0, 5.0]
    programme = emulator.recorder.programme
    assert programme is not None
    launches = [entry for entry in programme.entries_since(0) if entry.name == "cuda::scale"]
    assert [(entry.reads, entry.writes) for entry in launches] == [(5 * 32, 3 * 32)]
    assert not waits
    assert any("the CUDA kernel scale was launched but not run" in note for note in emulator.session().notes)


def test_without_values_what_it_writes_is_not_known() -> None:
    with Emulator(EmulatorOptions(dry=True)) as emulator:
        args = arguments()
        scale()(args=args)
        values = emulator.core.values
        assert values is not None
        assert [values.lacks([tensor]) for tensor in args[:5]] == [False, False, True, True, True]


def test_a_stand_in_computes_it(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "_replacements", {})

    @gapless.standin("cuda::scale")
    def computed(x: Any, y: Any, out: Any, sums: Any, kept: Any, n: int) -> None:
        out.copy_(2 * x)

    args = arguments()
    scale()(args=args)
    assert args[2].tolist() == [2.0] * 8
    assert not any("was launched but not run" in note for note in emulator.session().notes)


def test_it_refuses_what_torch_refuses(emulator: Emulator) -> None:
    kernel, args = scale(), arguments()
    with pytest.raises(ValueError, match="must be CUDA tensors or pinned"):
        kernel(args=[torch.ones(8), *args[1:]])
    kernel(args=[torch.ones(8).pin_memory(), *args[1:]])
    with pytest.raises(TypeError, match="Unsupported argument type"):
        kernel(args=[*args[:5], "8"])
    with pytest.raises(RuntimeError, match="not configured"):
        kernel(args=args, shared_mem=100_000)
    kernel.set_shared_memory_config(100_000)
    kernel(args=args, shared_mem=100_000)
    with pytest.raises(RuntimeError, match="only 100000 bytes configured"):
        kernel(args=args, shared_mem=100_001)
    with pytest.raises(RuntimeError, match="exceeds device limit"):
        kernel.set_shared_memory_config(1 << 20)
    with pytest.raises(ValueError, match="has no `__global__` function other"):
        torch.cuda._compile_kernel(SOURCE, "other")


def test_it_is_captured_and_replayed_as_one_launch(emulator: Emulator) -> None:
    kernel, args, graph = scale(), arguments(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(args=args)
    args[2].fill_(7.0)
    graph.replay()
    assert args[2].tolist() == [0.0] * 8
