"""Whatever torch says where there is no GPU is known as that; what the user's code says is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gapless.prove.failure import needs_gpu

CALLS: dict[str, Callable[[], object]] = {
    "to": lambda: torch.ones(2).to("cuda"),
    "pinned": lambda: torch.empty(2, pin_memory=True),
    "pin_memory": lambda: torch.empty(2).pin_memory(),
    "generator": lambda: torch.Generator("cuda"),
    "torch.Stream": lambda: torch.Stream("cuda"),
    "torch.Event": lambda: torch.Event("cuda"),
    "stream": torch.cuda.Stream,
    "event": torch.cuda.Event,
    "graph": torch.cuda.CUDAGraph,
    "current stream": torch.cuda.current_stream,
    "synchronize": torch.cuda.synchronize,
    "set_device": lambda: torch.cuda.set_device(0),
    "device": lambda: torch.cuda.device(0).__enter__(),
    "range": lambda: torch.cuda.nvtx.range_push("step"),
    "accelerator": torch.accelerator.synchronize,
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_torch_says_without_a_gpu(name: str) -> None:
    with pytest.raises((AssertionError, AttributeError, RuntimeError)) as met:
        CALLS[name]()
    assert needs_gpu(met.value)


@pytest.mark.parametrize(
    "error", [AttributeError("module 'mine' has no attribute 'loss'"), RuntimeError("no"), ValueError("CUDA")]
)
def test_what_the_code_says(error: Exception) -> None:
    assert not needs_gpu(error)
