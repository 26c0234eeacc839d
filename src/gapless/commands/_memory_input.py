"""The inputs of ``gapless memory``: files of several kinds, GPUs, sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gapless.errors import UnreadableInput, UsageError
from gapless.files.kinds import recognize
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import CONTEXT_BYTES, MemoryRun

if TYPE_CHECKING:
    from gapless.memory.trials import TrialConditions

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_PREFIXES = " kmgt"


class RecordedMemory(NamedTuple):
    """The memory runs of a file and, of a session, its loaders, whether its program finished, and what its
    steps are called.
    """

    runs: tuple[MemoryRun, ...]
    loaders: tuple[LoaderUse, ...] = ()
    finished: bool = False
    noun: str = "step"


def read_recorded(path: str) -> RecordedMemory:
    """Read the memory runs of `path`, with the context that a session adds.

    Raises:
        UnreadableInput: the file holds no memory requests.
    """
    if recognize(path).name == "session":
        return _of_session(path)
    return RecordedMemory(read(path))


def read(path: str) -> tuple[MemoryRun, ...]:
    """Read the runs in `path`: a snapshot, a profile with ``[memory]`` events, or a file saved by Gapless.

    Raises:
        UnreadableInput: it is none of these.
    """
    from gapless.memory.snapshot import read as read_snapshot
    from gapless.model.memory import load

    recognized = recognize(path)
    if recognized.foreign is not None:
        raise UnreadableInput(recognized.foreign.refusal(path))
    if recognized.name == "memory":
        return load(path)
    if recognized.name == "session":
        return _of_session(path).runs
    if recognized.name == "trace":
        return _of_profile(path)
    if recognized.name not in ("snapshot", ""):
        raise UnreadableInput(f"{path} is a saved {recognized.name} and contains no memory requests")
    return read_snapshot(path)


def _of_profile(path: str) -> tuple[MemoryRun, ...]:
    from gapless.analyze.profile.memory_events import read_memory_runs
    from gapless.trace.read import read as read_trace

    return read_memory_runs(read_trace(path))


def _of_session(path: str) -> RecordedMemory:
    """Read the memory runs that ``gapless check --memory`` recorded."""
    from gapless.analyze.run.inference import noun_of
    from gapless.model.session import load

    session = load(path)
    if not session.memory:
        why = (
            "nothing was put on the device" if session.environment.unused else "it was saved without --memory"
        )
        raise UnreadableInput(f"{path} contains no memory requests: {why}")
    runs = tuple(msgspec.structs.replace(run, path=path) for run in session.memory)
    return RecordedMemory(runs, tuple(session.loaders), session.ending.is_own, noun_of(session))


def choose(runs: tuple[MemoryRun, ...], device: int | None, where: TrialConditions) -> MemoryRun:
    """Choose the run of `device`; otherwise one that failed or exceeds the limit in `where`, else the
    busiest.

    Raises:
        UsageError: nothing was recorded for `device`.
    """
    if not runs:
        raise UnreadableInput("the file contains no run: save it again")
    if device is None:
        from gapless.memory.devices import choose_main

        return choose_main(runs, where)
    for run in runs:
        if run.device == device:
            return run
    devices = ", ".join(str(run.device) for run in runs)
    raise UsageError(f"nothing was recorded for device {device}: there is {devices}")


def parse_limits(gpu: str | None, limit: str | None) -> tuple[str, int, int]:
    """Return the device's name, the bytes that the process may reserve and the device's total; -1 if
    unknown."""
    name, capacity, total = "", -1, -1
    if gpu is not None:
        from gapless.model.gpus import find_card

        card = find_card(gpu)
        name, capacity, total = card.name, card.total_memory - CONTEXT_BYTES, card.total_memory
    if limit is not None:
        capacity = parse_size(limit)
        total = max(total, capacity)
    return name, capacity, total


def parse_size(text: str) -> int:
    """Parse a size in bytes: ``24GiB``, ``24G`` (the same), ``22.5GB`` (powers of 1000), ``1000000``.

    Raises:
        UsageError: it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size: write 24GiB, 22.5GB or a number of bytes")
    number, unit = float(match.group(1)), match.group(2).lower()
    decimal = len(unit) == 2 and unit.endswith("b")
    power = _PREFIXES.index(unit[0]) if unit not in ("", "b") else 0
    return int(number * (1000 if decimal else 1024) ** power)
