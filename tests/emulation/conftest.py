"""Two emulated devices for the tests of this room, and what the host waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions


class Machine:
    """An emulation that is on."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def waits(self) -> int:
        """How many times the host has waited until now."""
        return self.emulator.recorder.total

    def kinds(self) -> list[tuple[str, str, int]]:
        """``(operator, mechanism, times)`` of everything that waited, in order of time."""
        session = self.emulator.session()
        return [
            (session.sites[e.site].operator.rpartition("::")[2], session.sites[e.site].mechanism, e.waits)
            for e in session.events
        ]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine with the devices cuda:0 and cuda:1."""
    with Emulator(EmulatorOptions(devices=2)) as emulator:
        yield Machine(emulator)
