"""`gapless.emulate()`: the emulated device for a block of code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.emulation.options import EmulatorOptions
from gapless.model import Race, Session
from gapless.model.session import save

if TYPE_CHECKING:
    from gapless.emulation.emulator import Emulator


class Record:
    """The record of an emulation so far; complete once its block has ended."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._final: Session | None = None

    @property
    def session(self) -> Session:
        """Everything recorded so far, as a `Session`."""
        return self._final or self._emulator.session()

    @property
    def waits(self) -> int:
        """The number of times the host has waited."""
        return self._emulator.recorder.total

    @property
    def races(self) -> tuple[Race, ...]:
        """Unordered accesses to the same memory, which may give wrong numbers on a GPU."""
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
) -> Iterator[Record]:
    """Run the block as on a machine with `devices` GPUs named `gpu`.

    By default one NVIDIA A100 80GB for each rank that torchrun has started here.
    A `dry` run has no values of large tensors, and needs no memory for them; the values it assumes when the
    CPU reads one are in ``seen.session.assumptions``, and `assume` sets them: ``{"train.py:120": 0.3}``.
    With a `world_size` the block runs as `rank` of that many, as torchrun would start it, without the other
    ranks: collectives move nothing, and the session says what this rank would send.
    With `late_copies` copies to the CPU with ``non_blocking=True`` arrive when something waits for them:
    earlier reads give NaN, or a number out of range.
    Packages such as flash-attention have stand-ins where they are not installed, for code that imports them
    or asks a library to use them. With ``standins=True`` libraries that merely check for them find them too;
    with ``standins=False`` nobody does.

    Yields the record: ``seen.session``, ``seen.waits``, ``seen.races``, ``seen.save(path)``. Tensors placed
    on the device inside the block must not be used after it.

    Raises:
        UsageError: no GPU of that name, no such rank, or an emulation is on already.
    """
    # It imports torch, which `gapless.emulate` does not need before it is called.
    from gapless.emulation.emulator import Emulator

    options = EmulatorOptions(
        gpu,
        devices,
        world_size,
        rank,
        programme=world_size is not None,
        dry=dry,
        assume=dict(assume or {}),
        late_copies=late_copies,
        standins=standins,
    )
    with Emulator(options) as emulator:
        record = Record(emulator)
        try:
            yield record
        finally:
            record._close()
