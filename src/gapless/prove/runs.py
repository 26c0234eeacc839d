"""Calls to be timed: forward, and backward where there are gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gapless.model.proof import Timing
from gapless.prove.calls import cotangent, seed_all
from gapless.prove.inputs import Input
from gapless.prove.places import Place
from gapless.prove.subjects import Instance, Subject
from gapless.prove.timing import Meter, Stopwatch
from gapless.prove.tree import tensors

_ROOM = {"cpu": 256e6, "cuda": 2e9}
"""Bytes that copies of the inputs may take, by kind of device."""


class Calls:
    """A `Runner` that calls `instance` with `given`: with copies of it where a call changes its arguments."""

    def __init__(self, instance: Instance, given: Input, seed: int, copies: bool, backward: bool) -> None:
        self._instance = instance
        self._given = given
        self._seed = seed
        self._copies = copies
        self._backward = backward
        self._trained = list(instance.trained().values()) if backward else []
        self._ready: list[tuple[Input, list[torch.Tensor]]] = []
        self._cotangents: dict[str, torch.Tensor] = {}
        size = sum(one.numel() * one.element_size() for _, one in given.tensors())
        kind = "cuda" if any(one.is_cuda for _, one in given.tensors()) else "cpu"
        self.most = max(1, int(_ROOM[kind] / max(size, 1))) if copies else 1_000_000

    def prepare(self, calls: int) -> None:
        """Get the arguments of that many calls ready."""
        seed_all(self._seed)
        if self._copies:
            self._ready = [self._own() for _ in range(calls)]
        elif not self._ready:
            self._ready = [self._own()]

    def run(self, calls: int) -> None:
        """Call so many times."""
        for number in range(calls):
            self._call(*self._ready[number if self._copies else 0])

    def _own(self) -> tuple[Input, list[torch.Tensor]]:
        """Arguments of a call, and what gradients are taken of."""
        own = self._given.fresh()
        asked = [one for _, one in own.tensors() if one.requires_grad] if self._backward else []
        return own, [*asked, *(one for one in self._trained if not any(one is other for other in asked))]

    def _call(self, own: Input, trained: list[torch.Tensor]) -> None:
        output = self._instance.call(*own.args, **own.kwargs)
        if not trained:
            return
        if any(one.grad is not None for one in trained):  # the call has been backward itself
            for one in trained:
                one.grad = None
            return
        ends = {path: one for path, one in tensors(output, "output") if one.requires_grad}
        if ends:
            weights = [self._cotangent(path, one) for path, one in ends.items()]
            torch.autograd.grad(list(ends.values()), trained, weights, allow_unused=True)

    def _cotangent(self, path: str, output: torch.Tensor) -> torch.Tensor:
        known = self._cotangents.get(path)
        if known is None or known.shape != output.shape or known.dtype != output.dtype:
            known = self._cotangents[path] = cotangent(path, output)
        return known


@contextmanager
def _calls(
    subject: Subject, given: Input, place: Place, seed: int, copies: bool, backward: bool
) -> Iterator[Calls]:
    with subject.fresh() as instance:
        place.instance(instance)
        yield Calls(instance, place.input(given), seed, copies, backward)


def measured(
    subjects: tuple[Subject, Subject],
    given: Input,
    place: Place,
    meter: Meter,
    seconds: float,
    *,
    seed: int = 0,
    copies: bool = False,
    backward: bool = True,
) -> Timing:
    """How long calls of both take. `copies` says that one of them changes its arguments."""
    with (
        _calls(subjects[0], given, place, seed, copies, backward) as before,
        _calls(subjects[1], given, place, seed, copies, backward) as after,
    ):
        return Stopwatch(meter, seconds).measure(before, after)
