"""What ``gapless memory`` is given: files of several kinds, GPUs, sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gapless.errors import UnreadableInput, UsageError
from gapless.files.kinds import kind
from gapless.model.loader_use import LoaderUse
from gapless.model.memory import CONTEXT, MemoryRun

if TYPE_CHECKING:
    from gapless.memory.trials import TrialConditions

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_PREFIXES = " kmgt"


class Recorded(NamedTuple):
    """The runs of a file and, of a session, its loaders, whether its program came to its own end, and what
    its steps are called."""

    runs: tuple[MemoryRun, ...]
    loaders: tuple[LoaderUse, ...] = ()
    finished: bool = False
    noun: str = "step"


def recorded(path: str) -> Recorded:
    """What the file `path` says of memory.

    Raises:
        UnreadableInput: nothing, or it is none of the files that do.
    """
    if kind(path).name == "session":
        return _of_session(path)
    return Recorded(read(path))


def read(path: str) -> tuple[MemoryRun, ...]:
    """The runs in the file `path`: a snapshot, a profile with ``[memory]`` events, or what Gapless saved.

    Raises:
        UnreadableInput: it is none of these.
    """
    from gapless.memory.snapshot import read as read_snapshot
    from gapless.model.memory import load

    recognized = kind(path)
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


def _of_session(path: str) -> Recorded:
    """What `gapless check --memory` recorded."""
    from gapless.analyze.run.inference import noun_of
    from gapless.model.session import load

    session = load(path)
    if not session.memory:
        why = (
            "nothing was put on the device" if session.environment.unused else "it was saved without --memory"
        )
        raise UnreadableInput(f"{path} contains no memory requests: {why}")
    runs = tuple(msgspec.structs.replace(run, path=path) for run in session.memory)
    return Recorded(runs, tuple(session.loaders), session.ending.how == "finished", noun_of(session))


def choose(runs: tuple[MemoryRun, ...], device: int | None, where: TrialConditions) -> MemoryRun:
    """The run of `device`; else one that failed, or fails under the limit in `where`; else the busiest.

    Raises:
        UsageError: nothing was recorded of `device`.
    """
    if not runs:
        raise UnreadableInput("the file contains no run: save it again")
    if device is None:
        from gapless.memory.devices import choose_main

        return choose_main(runs, where)
    for run in runs:
        if run.device == device:
            return run
    known = ", ".join(str(run.device) for run in runs)
    raise UsageError(f"nothing was recorded for device {device}: there is {known}")


def room(gpu: str | None, limit: str | None) -> tuple[str, int, int]:
    """The device's name, what the process may reserve of it, and what it has; -1 where nothing is said."""
    name, capacity, total = "", -1, -1
    if gpu is not None:
        from gapless.model.gpus import find_card

        found = find_card(gpu)
        name, capacity, total = found.name, found.total_memory - CONTEXT, found.total_memory
    if limit is not None:
        capacity = parse_size(limit)
        total = max(total, capacity)
    return name, capacity, total


def parse_size(text: str) -> int:
    """Bytes: ``24GiB``, ``24G`` (the same), ``22.5GB`` (powers of 1000), ``1000000``.

    Raises:
        UsageError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a size: write 24GiB, 22.5GB or a number of bytes")
    number, unit = float(found.group(1)), found.group(2).lower()
    decimal = len(unit) == 2 and unit.endswith("b")
    power = _PREFIXES.index(unit[0]) if unit not in ("", "b") else 0
    return int(number * (1000 if decimal else 1024) ** power)
