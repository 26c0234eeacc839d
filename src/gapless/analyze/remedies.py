"""Changes that may make a run fit that does not: those to try, and those only calculated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from gapless.analyze.attempts import steps_until_full
from gapless.memory.fits import fits
from gapless.memory.kinds import kinds_of
from gapless.memory.modules import fold_numbers
from gapless.model import Session
from gapless.model.attempt import Attempt
from gapless.model.memory import ALLOC, MemoryRun
from gapless.model.memory_report import MemoryReport

_MIN_ACTIVATION_SHARE = 0.05
"""Share of the peak that a class's activations must hold for its checkpointing to be tried."""
_MAX_CLASSES = 2
"""Classes to try: the layers, and the largest part of them; each try is a run of the script."""
_SHARDING_RANKS = 8
"""GPUs over which optimizer states are sharded in the calculation: one node."""
_MIN_ELEMENTS_8BIT = 4096
"""Elements below which 8-bit optimizers keep full states (bitsandbytes)."""
_BLOCK_ELEMENTS = 256
"""Elements that share one 4-byte factor there."""


class Candidate(NamedTuple):
    """A change to try: its label, and the option that applies it from outside."""

    label: str
    option: str
    note: str = ""


def candidates(session: Session, memory: Sequence[MemoryReport]) -> Iterator[Candidate]:
    """Yield changes that can be applied from outside, the most promising first."""
    for run, report in zip(session.memory, memory, strict=True):
        if report.lack is None:
            continue
        for path, name in _classes(run, report):
            yield Candidate(f"checkpoint `{name}` ({path})", f"checkpoint={name}")
        if _zeroes_gradients(session):
            yield Candidate("zero_grad(set_to_none=True)", "set_to_none")
        return


def _classes(run: MemoryRun, report: MemoryReport) -> list[tuple[str, str]]:
    """Return paths and classes of the repeated modules that hold most activations when memory runs out.

    They are the layers themselves, and the largest part of them.
    """
    bytes_by_module = _activations(run, report)
    total = sum(part.bytes for part in (report.failing or report.peak).parts) or 1
    classes = dict(run.classes)
    repeated = {
        path: sum(
            size
            for module, size in bytes_by_module.items()
            if module == path or module.startswith(f"{path}.")
        )
        for path in classes
        if "[*]" in path
    }
    worth = sorted(
        (path for path, size in repeated.items() if size >= _MIN_ACTIVATION_SHARE * total),
        key=lambda path: (-repeated[path], len(path)),
    )
    layers = [path for path in worth if path.endswith("[*]")][:1]
    inner = [path for path in worth if layers and path.startswith(f"{layers[0]}.")][: _MAX_CLASSES - 1]
    chosen: dict[str, str] = {}
    for path in (*layers, *inner):
        if classes[path] not in chosen.values() and classes[path].isidentifier():
            chosen[path] = classes[path]
    return list(chosen.items())


def _activations(run: MemoryRun, report: MemoryReport) -> Counter[str]:
    """Return bytes of activations by module, with numbers folded, when memory runs out."""
    bytes_by_module: Counter[str] = Counter()
    for owner in (report.failing or report.peak).owners:
        if owner.kind in ("activation", "forward", "kept") and owner.module:
            bytes_by_module[fold_numbers(owner.module)] += owner.bytes
    return bytes_by_module


def _zeroes_gradients(session: Session) -> bool:
    """Whether gradients are set to zero rather than to None."""
    entries = session.programme.entries if session.programme is not None else ()
    return any(entry.name == "aten::_foreach_zero_" for entry in entries)


def calculate_attempts(session: Session, memory: Sequence[MemoryReport]) -> Iterator[Attempt]:
    """Replay what was recorded with other sizes, for changes that no option makes."""
    pairs = zip(session.memory, memory, strict=True)
    run = next((run for run, report in pairs if report.lack is not None), None)
    if run is None:
        return
    states = _optimizer_states(run)
    if not states:
        return
    finished = session.ending.is_own
    eight = {row: _size_in_8_bits(run.size[row]) for row in states}
    yield _replay_attempt(
        _with_sizes(run, eight),
        "8-bit optimizer states",
        "calculated: the recorded requests with state sizes as in bitsandbytes; the memory and time of its "
        "own kernels are not known",
        finished,
    )
    if session.environment.world_size == 1:
        shards = {row: max(-(-run.size[row] // _SHARDING_RANKS), 1) for row in states}
        yield _replay_attempt(
            _with_sizes(run, shards),
            f"optimizer states sharded over {_SHARDING_RANKS} GPUs",
            f"calculated: the recorded requests with 1/{_SHARDING_RANKS} of the states (ZeRO 1), which needs "
            f"{_SHARDING_RANKS} GPUs and gathers the weights in each step; buffers for that are not counted",
            finished,
        )


def _replay_attempt(run: MemoryRun, label: str, note: str, finished: bool) -> Attempt:
    """Replay `run` and return whether it fits, as an attempt that was not tried."""
    fit = fits(run)
    return Attempt(
        what=label, fits=fit.fits, needs=fit.needs, has=fit.has, allocated=fit.allocated,
        lasts=steps_until_full(run, fit.has, finished) if fit.fits else -1, tried=False, note=note,
    )  # fmt: skip


def _optimizer_states(run: MemoryRun) -> list[int]:
    """Return the rows that allocate optimizer states."""
    rows = {run.ident[row]: row for row, action in enumerate(run.action) if action == ALLOC}
    roles = kinds_of(run, {ident: run.place[row] for ident, row in rows.items()}, -1)
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for ident, row in rows.items():
        by_kind[roles[ident]].append(row)
    return by_kind["optimizer"]


def _size_in_8_bits(size: int) -> int:
    """Return bytes of a 32-bit state of `size` bytes after quantising it to 8 bits."""
    elements = size // 4
    return size if elements < _MIN_ELEMENTS_8BIT else elements + 4 * -(-elements // _BLOCK_ELEMENTS)


def _with_sizes(run: MemoryRun, sizes: dict[int, int]) -> MemoryRun:
    """Return `run` with other sizes in some rows."""
    return msgspec.structs.replace(run, size=tuple(sizes.get(row, size) for row, size in enumerate(run.size)))
