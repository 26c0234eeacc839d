"""`gapless.emulate()`: the emulated device for a block of code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.model import Race, Session
from gapless.model.session import save

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator


class Seen:
    """What an emulation has seen so far; complete once its block has ended."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._final: Session | None = None

    @property
    def session(self) -> Session:
        """Everything recorded until now, as a `Session`."""
        return self._final or self._emulator.session()

    @property
    def waits(self) -> int:
        """How many times the host has waited."""
        return self._emulator.recorder.total

    @property
    def races(self) -> tuple[Race, ...]:
        """Accesses to the same memory that nothing orders: on a GPU numbers may be wrong for them."""
        return self.session.races

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session to `path` for ``gapless show``."""
        save(self.session, path)

    def _close(self) -> None:
        self._final = self._emulator.session()


@contextmanager
def emulate(
    gpu: str | None = None,
    devices: int | None = None,
    *,
    dry: bool = False,
    assume: Mapping[str, float] | None = None,
    standins: bool | None = None,
    late_copies: bool = False,
    world_size: int | None = None,
    rank: int = 0,
) -> Iterator[Seen]:
    """Run the block as on a machine with `devices` GPUs named `gpu`.

    By default that is an NVIDIA A100 80GB, one for each rank that torchrun has started here.
    A `dry` run has no values of large tensors, and needs no memory for them; what it tells the CPU is in
    ``seen.session.assumptions``, and `assume` says otherwise, as in ``{"train.py:120": 0.3}``.
    With a `world_size` the block runs as `rank` of so many, as torchrun would start it, without the others:
    collectives move nothing, and the session says what this rank would send.
    With `late_copies` copies to the CPU with ``non_blocking=True`` arrive when something waits for them: what
    is read before is NaN, or a number out of range.
    Packages such as flash-attention have stand-ins where they are not installed, for code that imports them
    or asks a library to use them. With `standins` true libraries that only look for them find them, too; with
    false nobody does.

    Yields what is seen: ``seen.session``, ``seen.waits``, ``seen.races``, ``seen.save(path)``. Tensors placed
    on the device inside the block must not be used after it.

    Raises:
        UsageError: no GPU of that name, no such rank, or an emulation is on already.
    """
    # Both import torch, which `gapless.emulate` does not need before it is called.
    from gapless.emulation.distributed.world import World
    from gapless.emulation.emulator import Emulator

    world = None if world_size is None else World.of(world_size, rank, devices)
    with Emulator(
        gpu,
        devices,
        dry=dry,
        assume=assume,
        standins=standins,
        late_copies=late_copies,
        world=world,
        programme=world is not None,
    ) as emulator:
        seen = Seen(emulator)
        try:
            yield seen
        finally:
            seen._close()
