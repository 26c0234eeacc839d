"""Training without a GPU: what is asked for is what can be reckoned by hand from shapes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.memory_run import NOT_MODELLED
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.memory.report import report
from gapless.memory.sizes import MIB
from gapless.model.memory import ALLOC, FREE, MemoryRun, check
from gapless.model.memory_report import MemoryReport
from gapless.torch_internals import VERSION

pytestmark = pytest.mark.skipif(
    not reports_storage_ends(), reason=f"torch 2.{VERSION[1]} does not tell when storages end"
)

WIDTH, TOKENS, LAYERS, STEPS = 256, 2048, 4, 2
WORKSPACES = 2 * 8_519_680
"""cuBLAS takes one in forward and one in backward's thread."""
HIDDEN = 4 * TOKENS * 4 * WIDTH
"""Bytes of the inner activation of a layer in full precision; its input and output take a quarter each."""
FLAT = HIDDEN // 4


class Layer(nn.Module):
    """What a layer keeps for backward is its input and the inner activation behind the ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


PARAMETERS = LAYERS * 2 * 4 * WIDTH * WIDTH * 4


def train(
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = torch.optim.AdamW,
    *,
    dtype: torch.dtype | None = None,
    wrap: Callable[[Layer, torch.Tensor], torch.Tensor] = lambda layer, x: layer(x),
    parts: int = 1,
    compiled: bool = False,
) -> MemoryRun:
    """Some steps on the emulated device."""
    with Emulator(EmulatorOptions("t4", memory=True)) as emulator:
        layers = nn.ModuleList(Layer() for _ in range(LAYERS)).cuda()
        stepping = optimizer(layers.parameters()) if optimizer else None

        def forward(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = wrap(layer, x)
            return x.sum()

        run = torch.compile(forward) if compiled else forward
        for _ in range(STEPS):
            for _ in range(parts):
                x = torch.ones(TOKENS // parts, WIDTH).cuda()
                with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = run(x)
                loss.backward()
            if stepping is not None:
                stepping.step()
                stepping.zero_grad()
            del loss, x
        (recording,) = emulator.session().memory
    assert check(recording) == ""
    return recording


@pytest.fixture(scope="module")
def plain() -> MemoryRun:
    return train()


def bytes_in_use(run: MemoryRun) -> list[tuple[int, str]]:
    """Return after each event the bytes in use, and the kind of the last request; blocks are multiples of
    512."""
    alive: dict[int, int] = {}
    totals, kind = [], ""
    for action, ident, size, place in zip(run.action, run.ident, run.size, run.place, strict=True):
        if action == ALLOC:
            alive[ident] = -(-size // 512) * 512
            kind = run.places[place].kind
        elif action == FREE:
            del alive[ident]
        totals.append((sum(alive.values()), kind))
    return totals


def highest(run: MemoryRun, kind: str) -> int:
    """The most in use when tensors of this kind are asked for."""
    return max(total for total, allocated_kind in bytes_in_use(run) if allocated_kind == kind)


def kinds(memory: MemoryReport) -> dict[str, int]:
    return dict(memory.peak.kinds)


def close(measured: int, reckoned: int) -> bool:
    """The same but for losses, counters of steps and the like."""
    return 0 <= measured - reckoned <= 64 << 10


def test_between_steps_there_is_what_stays(plain):
    ends = report(plain).ends
    after = 4 * PARAMETERS + FLAT + WORKSPACES  # a step ends before the gradients go
    assert [close(end.allocated, after) for end in ends] == [True] * STEPS
    nothing = report(train(None)).ends
    assert nothing == ()
    (last, _) = bytes_in_use(train(None))[-1]
    assert close(last, 2 * PARAMETERS + WORKSPACES)  # gradients that nobody clears


def test_the_end_of_forward_is_what_backward_needs(plain):
    """Each layer's input and inner activation; from the second step on the optimizer's two moments, too."""
    kept = LAYERS * (FLAT + HIDDEN)
    rows = bytes_in_use(plain)
    ends = [
        total
        for (total, kind), (_, following) in pairwise(rows)
        if kind == "activation" and following not in ("activation", "workspace")
    ]
    assert len(ends) == STEPS
    assert close(ends[0], PARAMETERS + kept + WORKSPACES // 2)
    assert all(close(size, 3 * PARAMETERS + kept + WORKSPACES) for size in ends[1:])


def test_the_peak_is_no_less_than_what_must_be_there(plain):
    memory = report(plain)
    base = memory.baseline
    assert base.peak_reserved >= base.peak_allocated >= 3 * PARAMETERS + LAYERS * (FLAT + HIDDEN) + WORKSPACES
    sizes = kinds(memory)
    assert (sizes["parameter"], sizes["workspace"]) == (PARAMETERS, WORKSPACES)
    assert close(sizes["optimizer"], 2 * PARAMETERS)
    assert sum(sizes.values()) <= base.peak_allocated
    assert NOT_MODELLED in memory.notes


def test_a_step_over_lists_takes_a_temporary_and_a_fused_one_takes_none(plain):
    """AdamW over lists of tensors makes the root of its second moment for all of them at once."""
    before = 4 * PARAMETERS + FLAT + WORKSPACES  # with the gradients and the batch
    assert close(highest(plain, "optimizer"), before + PARAMETERS)
    one_by_one = train(lambda of: torch.optim.AdamW(of, foreach=False))
    largest = 4 * 4 * WIDTH * WIDTH
    assert before < highest(one_by_one, "optimizer") <= before + 3 * largest + 4096
    fused = train(lambda of: torch.optim.AdamW(of, fused=True))
    assert close(highest(fused, "optimizer"), before)


def test_sgd_keeps_no_state():
    memory = report(train(torch.optim.SGD))
    assert [close(end.allocated, 2 * PARAMETERS + FLAT + WORKSPACES) for end in memory.ends] == [True] * STEPS
    assert "optimizer" not in kinds(memory) or kinds(memory)["optimizer"] < 4096


def test_autocast_halves_what_is_kept_and_keeps_its_casts(plain):
    """The weights' casts (half of them) live as long as the forward that cached them, or its graph."""
    half = report(train(dtype=torch.bfloat16))
    whole = report(plain)
    assert close(half.ends[-1].allocated, 4 * PARAMETERS + FLAT + WORKSPACES)
    saved = whole.peak.kinds["activation"] - half.peak.kinds["activation"]
    kept = LAYERS * (FLAT + HIDDEN)
    # Half of the activations are saved, and half of the parameters are added: nothing else is.
    assert abs(saved - (kept // 2 - PARAMETERS // 2)) <= FLAT + HIDDEN
    assert half.baseline.peak_allocated < whole.baseline.peak_allocated


def test_accumulated_gradients_are_there_in_the_next_backward(plain):
    memory = report(train(parts=2))
    base = memory.baseline
    assert base.peak_allocated >= 4 * PARAMETERS + LAYERS * (FLAT + HIDDEN) // 2
    activations = memory.peak.kinds["activation"]
    assert activations <= report(plain).peak.kinds["activation"] // 2 + FLAT
    assert close(memory.ends[-1].allocated, 4 * PARAMETERS + FLAT // 2 + WORKSPACES)


def test_checkpoints_keep_the_inputs_alone(plain):
    memory = report(train(wrap=lambda layer, x: checkpoint(layer, x, use_reentrant=False)))
    whole = report(plain)
    saved = whole.baseline.peak_allocated - memory.baseline.peak_allocated
    # Of all layers but the one at work the inner activation is not there.
    assert saved >= (LAYERS - 2) * HIDDEN
    assert memory.ends[-1].allocated == whole.ends[-1].allocated


def test_compiled_code_runs_step_by_step_here(plain):
    assert report(train(compiled=True)).baseline.peak_allocated == report(plain).baseline.peak_allocated


def test_reserved_follows_from_the_requests(plain):
    """Segments of two MiB, of twenty, or of their own size: what is reserved is made of these."""
    base = report(plain).baseline
    assert base.peak_reserved % (2 * MIB) == 0
    assert base.frees == base.retries == 0
    assert base.peak_reserved == base.final_reserved
