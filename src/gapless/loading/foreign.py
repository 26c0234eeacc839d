"""What yields batches and has no DataLoader in it: measured as it is, as nothing about it can be varied."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from gapless.loading import forked
from gapless.loading.batches import bytes_of
from gapless.loading.clock import Clock
from gapless.loading.columns import columns
from gapless.loading.feed import Feed
from gapless.loading.measure_loop import loop
from gapless.loading.nested import batched_as, tensors_of
from gapless.loading.padded import Lengths
from gapless.loading.sentence import sentence
from gapless.model.loading import Demand, Diagnosis, Doubt, Fetch, Machine, Prediction, Seen, Setting
from gapless.model.loading_feed import Column

_MOST = 256
"""Batches after which no more are asked for."""
_ALONE, _FED = 0.4, 0.5
"""Parts of the budget: batches as fast as they come, and in a loop with the step that they are to feed."""
_BUSY = 0.25
"""Part of the cores that others may use while something is measured."""

Progress = Callable[[str, float], None]


def as_it_is(feed: Feed, at: Machine, budget: float, demand: Demand, progress: Progress) -> Diagnosis:
    """How fast batches come when nothing else is done, and what a loop with `demand` waits for them.

    Raises:
        LoaderError: no batch comes.
    """
    assert feed.around is not None
    begin = time.monotonic()
    alone = _ALONE * budget

    def work(tell: forked.Tell) -> Fetch:
        return _alone(feed.fresh(), alone, tell)

    fetch = forked.measured(work, Fetch, budget, lambda part: progress("items", part))
    seen = None
    if demand.step:
        fed = _FED * budget
        found = forked.measured(
            lambda tell: loop(feed.fresh, Setting(), demand.step, demand.busy, fed, tell),
            Seen,
            budget,
            lambda part: progress("loop", part),
        )
        seen = found if found.batches else None
    return concluded(
        Diagnosis(
            dataset=feed.around.name,
            iterable=True,
            length=_length(feed.thing),
            demand=demand,
            machine=at,
            fetch=fetch,
            around=msgspec.structs.replace(feed.around, wall=fetch.cpu + fetch.wait, cpu=fetch.cpu),
            seen=seen,
            duration=time.monotonic() - begin,
            notes=feed.remarks,
        )
    )


def concluded(made: Diagnosis) -> Diagnosis:
    """With the loop that was run as what is, and the sentence."""
    now = None
    if made.seen is not None:
        now = Prediction(
            setting=made.setting, step=made.seen.step, wait=made.seen.wait, first=made.seen.first
        )
    made = msgspec.structs.replace(made, now=now, doubt=_crowded(made))
    return msgspec.structs.replace(made, sentence=sentence(made))


def _crowded(diagnosis: Diagnosis) -> Doubt | None:
    """That others had the cores while it was run: what it does by itself is not known then."""
    others = max(diagnosis.machine.others, diagnosis.seen.others if diagnosis.seen is not None else 0.0)
    if others < _BUSY * diagnosis.machine.allowed or others + 1 <= diagnosis.machine.allowed:
        return None
    return Doubt(kind="busy", others=round(min(others, diagnosis.machine.allowed), 1))


def _length(thing: Any) -> int:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return -1


def _alone(thing: Any, seconds: float, tell: forked.Tell) -> Fetch:
    """Batches one after another, with the processor time of this process's threads and their waiting."""
    clock = Clock()
    begin = clock.wall()
    rows: list[tuple[int, int]] = []
    items, size, tensors, batch = 0, 0, 0, None
    lengths = Lengths()
    seen: tuple[Column, ...] = ()
    iterator = iter(thing)
    while len(rows) < _MOST:
        asked, cpu, delay = clock.wall(), clock.cpu(), clock.delayed()
        try:
            batch = next(iterator)
        except StopIteration:
            break
        passed = clock.wall() - asked - (clock.delayed() - delay)
        computing = min(clock.cpu() - cpu, passed)  # of several threads: what of it the loop has to wait for
        rows.append((computing, max(passed - computing, 0)))
        items = items or batched_as(batch)
        lengths.look(None, batch)
        seen = seen or columns(batch)
        if bytes_of(batch) > size:
            size, tensors = bytes_of(batch), sum(1 for _ in tensors_of(batch))
        done = (clock.wall() - begin) / 1e9
        tell(min(1.0, done / seconds))
        if done > seconds:
            break
    if not rows:
        raise forked.LoaderError("it yields no batch: it is empty or already exhausted")
    steady = rows[len(rows) // 5 :] if len(rows) > 4 else rows  # buffers that were full at first are not
    return Fetch(
        items=items * len(rows),
        batch_size=float(items),
        batch_bytes=size,
        tensors=tensors,
        padding=lengths.padding,
        columns=seen,
        batches=tuple(steady),
    )
