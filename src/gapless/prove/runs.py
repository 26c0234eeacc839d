"""Run calls to be timed: forward, and backward if there are gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from gapless.model.proof import Timing
from gapless.prove.calls import cotangent, seed_all
from gapless.prove.inputs import Input
from gapless.prove.places import CallPlace
from gapless.prove.subjects import Instance, Subject
from gapless.prove.timing import Meter, Stopwatch
from gapless.prove.tree import tensors

_MAX_COPY_BYTES = {"cpu": 256e6, "cuda": 2e9}
"""Bytes that copies of the inputs may take, by kind of device: small beside the memory of either."""


@dataclass(frozen=True)
class TimedInput:
    """The input of calls to be timed for about `seconds`; `copies`: a side changes its arguments."""

    call_input: Input
    seconds: float
    seed: int = 0
    copies: bool = False
    backward: bool = True


class TimedCalls:
    """A `Runner` that calls `instance` with an input, or with copies of it if calls change arguments."""

    def __init__(self, instance: Instance, timed: TimedInput) -> None:
        self._instance = instance
        call_input = self._given = timed.call_input
        self._seed = timed.seed
        copies = self._copies = timed.copies
        self._backward = timed.backward
        self._trained = list(instance.trained_tensors().values()) if timed.backward else []
        self._ready: list[tuple[Input, list[torch.Tensor]]] = []
        self._cotangents: dict[str, torch.Tensor] = {}
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in call_input.tensors())
        kind = "cuda" if any(tensor.is_cuda for _, tensor in call_input.tensors()) else "cpu"
        self.max_calls = max(1, int(_MAX_COPY_BYTES[kind] / max(size, 1))) if copies else 1_000_000

    def prepare(self, calls: int) -> None:
        """Prepare the arguments of that many calls."""
        seed_all(self._seed)
        if self._copies:
            self._ready = [self._copy_arguments() for _ in range(calls)]
        elif not self._ready:
            self._ready = [self._copy_arguments()]

    def run(self, calls: int) -> None:
        """Run that many calls."""
        for number in range(calls):
            self._call(*self._ready[number if self._copies else 0])

    def _copy_arguments(self) -> tuple[Input, list[torch.Tensor]]:
        """Return a copy of the arguments, and the tensors to take gradients of."""
        own = self._given.fresh()
        leaves = [tensor for _, tensor in own.tensors() if tensor.requires_grad] if self._backward else []
        return own, [
            *leaves,
            *(parameter for parameter in self._trained if not any(parameter is other for other in leaves)),
        ]

    def _call(self, own: Input, trained: list[torch.Tensor]) -> None:
        output = self._instance.call(*own.args, **own.kwargs)
        if not trained:
            return
        if any(tensor.grad is not None for tensor in trained):  # the call ran backward itself
            for tensor in trained:
                tensor.grad = None
            return
        ends = {path: tensor for path, tensor in tensors(output, "output") if tensor.requires_grad}
        if ends:
            weights = [self._cached_cotangent(path, output_tensor) for path, output_tensor in ends.items()]
            torch.autograd.grad(list(ends.values()), trained, weights, allow_unused=True)

    def _cached_cotangent(self, path: str, output: torch.Tensor) -> torch.Tensor:
        weights = self._cotangents.get(path)
        if weights is None or weights.shape != output.shape or weights.dtype != output.dtype:
            weights = self._cotangents[path] = cotangent(path, output)
        return weights


@contextmanager
def _make_calls(subject: Subject, timed: TimedInput, place: CallPlace) -> Iterator[TimedCalls]:
    with subject.fresh() as instance:
        place.place_instance(instance)
        yield TimedCalls(instance, replace(timed, call_input=place.place_input(timed.call_input)))


def measure_both(
    subjects: tuple[Subject, Subject], timed: TimedInput, place: CallPlace, meter: Meter
) -> Timing:
    """Measure how long calls of both subjects take."""
    with (
        _make_calls(subjects[0], timed, place) as before,
        _make_calls(subjects[1], timed, place) as after,
    ):
        return Stopwatch(meter, timed.seconds).measure(before, after)
