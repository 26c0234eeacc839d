"""What single operators keep for backward, launch and take: as the CPU composes them, and as CUDA does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from _cuda_choices import operators_and_kept
from torch.nn import functional

from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.operator_work import work
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

Tensor = torch.Tensor
GPU = "A100"
MIB = 1 << 20
WORDS = (
    f"Forward and backward, on an {GPU}; *kept* is what backward needs beside inputs and weights, "
    "*launching* operators run in both passes. The time of CUDA's way is estimated, *bandwidth* is what its "
    "bytes take at the data sheet's. The CPU's way is what the plain CPU does with the same call."
)
COLUMNS = [
    "operator", "input", "kept, MiB: CPU's way", "CUDA's way", "launching: CPU's way", "CUDA's way",
    "estimated, ms", "bandwidth, ms", "known from",
]  # fmt: skip


class Case(NamedTuple):
    """A call whose cost is looked at, of tensors of these `shapes` and that type, and of whole numbers.

    All are leaves that learn; `source` says whence it is known what CUDA does.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    call: Callable[..., Tensor]
    source: str
    numbers: tuple[Tensor, ...] = ()


_HALF, _BFLOAT, _FLOAT = torch.float16, torch.bfloat16, torch.float32
_LISTS = "torch's list of operators"
_CHOSEN = "torch's C++, asked with fakes"
_RULES = "ATen's sources"


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, weight, bias, True)


def _attention(x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def _bags(weight: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
    return functional.embedding_bag(indices, weight, offsets, mode="sum")


def _sampled(image: Tensor, grid: Tensor) -> Tensor:
    return functional.grid_sample(image, grid, align_corners=True)


def _lstm_cell(x: Tensor, h: Tensor, c: Tensor, of_x: Tensor, of_h: Tensor) -> Tensor:
    return torch.lstm_cell(x, (h, c), of_x, of_h)[0]


_INDICES = (torch.arange(1 << 16) % 4096, torch.arange(0, 1 << 16, 16))
CASES = (
    Case("rms_norm", ((2, 1024, 5120), (5120,)), _BFLOAT, _rms_norm, _LISTS),
    Case("rms_norm", ((2, 1024, 5120), (5120,)), _FLOAT, _rms_norm, _LISTS),
    Case("layer_norm", ((2, 1024, 4096), (4096,), (4096,)), _BFLOAT, _layer_norm, _CHOSEN),
    Case("dropout", ((2, 1024, 4096),), _BFLOAT, lambda x: functional.dropout(x, 0.1), _CHOSEN),
    Case("softmax to float32", ((8, 512, 512),), _HALF,
         lambda x: torch.softmax(x, -1, dtype=_FLOAT), _CHOSEN),
    Case("log_softmax to float32", ((1024, 4096),), _HALF,
         lambda x: torch.log_softmax(x, -1, dtype=_FLOAT), _CHOSEN),
    Case("logsigmoid", ((1024, 4096),), _FLOAT, functional.logsigmoid, _CHOSEN),
    Case("batch_norm", ((8, 64, 56, 56), (64,), (64,)), _FLOAT, _batch_norm, _RULES),
    Case("batch_norm", ((8, 64, 56, 56), (64,), (64,)), _BFLOAT, _batch_norm, _RULES),
    Case("grid_sample", ((8, 16, 32, 32), (8, 32, 32, 2)), _FLOAT, _sampled, _RULES),
    Case("embedding_bag", ((4096, 64),), _FLOAT, _bags, _CHOSEN, _INDICES),
    Case("attention, causal", ((1, 8, 512, 64),), _BFLOAT, _attention, _RULES),
    Case("lstm_cell", (*[(256, 512)] * 3, *[(2048, 512)] * 2), _FLOAT, _lstm_cell, _RULES),
)  # fmt: skip


def rows() -> list[list[object]]:
    """The table."""
    return [_row(case) for case in CASES]


def _row(case: Case) -> list[object]:
    host = operators_and_kept(case.call, _tensors(case, "cpu"))
    with Emulator(EmulatorOptions(GPU, programme=True)) as emulator:
        tensors = _tensors(case, "cuda")
        emulator.recorder.mark("user", "gapless.step")
        device = operators_and_kept(case.call, tensors)
        emulator.recorder.mark("user", "gapless.step")
        programme: Any = emulator.recorder.programme.programme()
    bodies = [programme.bodies[segment.body] for segment in programme.segments[1:]]
    entries = [programme.entries[number] for body in bodies for number in body]
    ones = [entry for entry in entries if entry.kind == "operator" and entry.name != "aten::ones_like"]
    taken = sum(device_time(work(entry), programme.gpu) for entry in ones)
    moved = sum(entry.reads + entry.writes for entry in ones) / (emulator.gpu.bandwidth * 1e9)
    shape = f"{'×'.join(map(str, case.shapes[0]))} {str(case.dtype).removeprefix('torch.')}"
    kept = [f"{size / MIB:.2f}" for size, _ in (host, device)]
    counts = [len(names) for _, names in (host, device)]
    return [case.name, shape, *kept, *counts, f"{taken / 1e6:.3f}", f"{moved * 1e3:.3f}", case.source]


def _tensors(case: Case, device: str) -> list[Tensor]:
    leaves = [torch.zeros(shape, dtype=case.dtype, device=device) for shape in case.shapes]
    return [*(leaf.requires_grad_() for leaf in leaves), *(leaf.to(device) for leaf in case.numbers)]
