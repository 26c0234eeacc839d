"""`no_waits`: a block or function in which the host must not wait for the device."""

from __future__ import annotations

import threading
import traceback
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

import torch

from gapless.emulation.emulator import Emulator, current
from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches
from gapless.errors import RaceError, UsageError, WaitError
from gapless.model import Race, Site

_DEBUG_WORDS = "synchronizing CUDA operation"


class no_waits(ContextDecorator):  # noqa: N801 - used like a function
    """Raise `WaitError`, naming the line, as soon as the host waits for the device in this thread.

    Use it as a context manager or decorator. On the emulated device every known wait raises, and so does a
    race (`RaceError`), because code that does not wait must not read too early either. On a real device
    torch's synchronization debug mode raises for the whole process, and explicit waits, which it misses,
    are refused as well.

    Raises:
        UsageError: there is neither a GPU nor an emulation (``with gapless.emulate():``).
        WaitError: the host waited.
        RaceError: nothing orders two accesses to the same memory (on the emulated device).
    """

    def __init__(self) -> None:
        self._leave: list[Any] = []

    def _recreate_cm(self) -> no_waits:
        return no_waits()

    def __enter__(self) -> no_waits:
        emulator = current()
        if emulator is not None:
            self._leave.append(_refuse_emulated_waits(emulator))
        elif torch.cuda.is_available():
            self._leave.append(_refuse_real_waits())
        else:
            raise UsageError(
                "no_waits() needs a device, but there is no GPU here: wrap it in `with gapless.emulate():`"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.pop()()
        if (
            isinstance(error, RuntimeError)
            and _DEBUG_WORDS in str(error)
            and not isinstance(error, WaitError)
        ):
            raise WaitError(_describe_wait(_user_line_of(trace), "a synchronizing CUDA operation")) from error


def _refuse_emulated_waits(emulator: Emulator) -> Any:
    thread = threading.get_ident()

    def listener(site: Site) -> None:
        if threading.get_ident() == thread:
            line = site.line
            place = f"{line.where}: {line.code}" if line is not None else ""
            raise WaitError(_describe_wait(place, site.call or site.operator))

    def on_race(race: Race) -> None:
        if threading.get_ident() == thread:
            raise RaceError(_describe_race(race))

    listeners, races = emulator.recorder.on_wait, emulator.core.races.log.listeners
    listeners.append(listener)
    races.append(on_race)

    def leave() -> None:
        listeners.remove(listener)
        races.remove(on_race)

    return leave


def _describe_race(race: Race) -> str:
    first, second = (
        f"{side.line.where}: {side.line.code}" if side.line is not None else "an unknown line"
        for side in (race.earlier, race.later)
    )
    return (
        f"nothing orders two uses of the same memory, inside no_waits(): on {race.earlier.where} at {first}; "
        f"on {race.later.where} at {second}"
    )


def _refuse_real_waits() -> Any:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    patches = Patches()

    def refuse(name: str) -> Any:
        def raise_wait(*_: Any, **__: Any) -> Any:
            frame = stacks.resolve(stacks.capture(0))
            place = f"{frame[0].where}: {frame[0].code}" if frame else ""
            raise WaitError(_describe_wait(place, name))

        return raise_wait

    patches.set(torch.cuda, "synchronize", refuse("torch.cuda.synchronize"))
    patches.set(torch.cuda.Stream, "synchronize", refuse("Stream.synchronize"))
    patches.set(torch.cuda.Event, "synchronize", refuse("Event.synchronize"))

    def leave() -> None:
        patches.undo()
        torch.cuda.set_sync_debug_mode(before)

    return leave


def _describe_wait(place: str, operation: str) -> str:
    where = f" at {place}" if place else ""
    return f"the CPU waits for the GPU{where} ({operation}) inside no_waits()"


def _user_line_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the user's code in a traceback."""
    frames = traceback.extract_tb(trace)
    for frame in reversed(frames):
        if not stacks.library_of(frame.filename):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
