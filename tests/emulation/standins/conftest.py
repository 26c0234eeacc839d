"""What the tests of stand-ins share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model.programme import Entry


class Recorded:
    """A machine that records its programme."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def waits(self) -> int:
        """How many times the host has waited until now."""
        return self.emulator.recorder.total

    @contextmanager
    def launching(self) -> Iterator[list[Entry]]:
        """What is launched in the block."""
        programme = self.emulator.recorder.programme
        assert programme is not None
        launches: list[Entry] = []
        add = programme._add

        def record_launch(number: int, at: int) -> None:
            entry = programme._segments.entry(number)
            if entry.kind != "update":  # what the optimizer's own Python costs; nothing is launched
                launches.append(entry)
            add(number, at)

        with patch.object(programme, "_add", record_launch):
            yield launches

    def notes(self) -> tuple[str, ...]:
        """What the report would remark."""
        return self.emulator.session().notes


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """A machine with one device, whose programme is recorded."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        yield Recorded(emulator)


@pytest.fixture
def gradients() -> Callable[..., list[torch.Tensor]]:
    """Gradients of a function's first result, its elements weighted apart, by its floating arguments."""

    def of(function: Callable[..., Any], *args: Any) -> list[torch.Tensor]:
        leaves = [a.detach().clone().requires_grad_() if _floats(a) else a for a in args]
        out = function(*leaves)
        out = out[0] if isinstance(out, tuple) else out
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
        wanted = [leaf for leaf in leaves if _floats(leaf)]
        return list(torch.autograd.grad((out * weights).sum(), wanted))

    return of


def _floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
