"""Measure a feed without a DataLoader as it is: none of its settings can be changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from gapless.loading import forked
from gapless.loading.batches import bytes_of
from gapless.loading.clock import Clock
from gapless.loading.columns import measure_columns
from gapless.loading.feed import Feed
from gapless.loading.measure_loop import run_loop
from gapless.loading.nested import count_items, tensors_of
from gapless.loading.padded import PaddingMeter
from gapless.loading.sentence import sentence
from gapless.model.loading import Demand, Diagnosis, Doubt, Fetch, Machine, Prediction, Seen, Setting
from gapless.model.loading_feed import BatchTensor

_MAX_BATCHES = 256
"""Batches requested at most."""
_ALONE_SHARE, _LOOP_SHARE = 0.4, 0.5
"""Shares of the budget: batches as fast as possible, and in a loop with the step that they feed."""
_MAX_OTHER_LOAD = 0.25
"""Share of the cores that other programs may use during a measurement."""

Progress = Callable[[str, float], None]


def measure_feed(feed: Feed, at: Machine, budget: float, demand: Demand, progress: Progress) -> Diagnosis:
    """Measure how fast batches come with nothing else to do, and how long a loop with `demand` waits.

    Raises:
        LoaderError: it yields no batch.
    """
    assert feed.around is not None
    begin = time.monotonic()
    alone = _ALONE_SHARE * budget

    def work(tell: forked.Tell) -> Fetch:
        return _measure_alone(feed.fresh(), alone, tell)

    fetch = forked.run_in_copy(work, Fetch, budget, lambda part: progress("items", part))
    loop_run = None
    if demand.step:
        fed = _LOOP_SHARE * budget
        measured_run = forked.run_in_copy(
            lambda tell: run_loop(feed.fresh, Setting(), demand.step, demand.busy, fed, tell),
            Seen,
            budget,
            lambda part: progress("loop", part),
        )
        loop_run = measured_run if measured_run.batches else None
    return conclude(
        Diagnosis(
            dataset=feed.around.name,
            iterable=True,
            length=_length(feed.thing),
            demand=demand,
            machine=at,
            fetch=fetch,
            around=msgspec.structs.replace(feed.around, wall=fetch.cpu + fetch.wait, cpu=fetch.cpu),
            seen=loop_run,
            duration=time.monotonic() - begin,
            notes=feed.remarks,
        )
    )


def conclude(diagnosis: Diagnosis) -> Diagnosis:
    """Add the measured loop as the current prediction, and the sentence."""
    now = None
    if diagnosis.seen is not None:
        now = Prediction(
            setting=diagnosis.setting,
            step=diagnosis.seen.step,
            wait=diagnosis.seen.wait,
            first=diagnosis.seen.first,
        )
    diagnosis = msgspec.structs.replace(diagnosis, now=now, doubt=_doubt_if_busy(diagnosis))
    return msgspec.structs.replace(diagnosis, sentence=sentence(diagnosis))


def _doubt_if_busy(diagnosis: Diagnosis) -> Doubt | None:
    """Return a doubt if other programs used the cores during the run; else None."""
    other_load = max(diagnosis.machine.others, diagnosis.seen.others if diagnosis.seen is not None else 0.0)
    allowed = diagnosis.machine.allowed
    if other_load < _MAX_OTHER_LOAD * allowed or other_load + 1 <= allowed:
        return None
    return Doubt(kind="busy", others=round(min(other_load, allowed), 1))


def _length(thing: Any) -> int:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return -1


def _measure_alone(thing: Any, seconds: float, tell: forked.Tell) -> Fetch:
    """Get batches one after another; measure the processor time of this process's threads and their waits."""
    clock = Clock()
    begin = clock.wall()
    rows: list[tuple[int, int]] = []
    items, size, tensors, batch = 0, 0, 0, None
    lengths = PaddingMeter()
    columns_of_batch: tuple[BatchTensor, ...] = ()
    iterator = iter(thing)
    while len(rows) < _MAX_BATCHES:
        began, cpu, delay = clock.wall(), clock.cpu(), clock.delayed()
        try:
            batch = next(iterator)
        except StopIteration:
            break
        passed = clock.wall() - began - (clock.delayed() - delay)
        computing = min(clock.cpu() - cpu, passed)  # of several threads, the part that the loop waits for
        rows.append((computing, max(passed - computing, 0)))
        items = items or count_items(batch)
        lengths.look(None, batch)
        columns_of_batch = columns_of_batch or measure_columns(batch)
        if bytes_of(batch) > size:
            size, tensors = bytes_of(batch), sum(1 for _ in tensors_of(batch))
        done = (clock.wall() - begin) / 1e9
        tell(min(1.0, done / seconds))
        if done > seconds:
            break
    if not rows:
        raise forked.LoaderError("it yields no batch: it is empty or already exhausted")
    steady = rows[len(rows) // 5 :] if len(rows) > 4 else rows  # at first buffers may be full
    return Fetch(
        items=items * len(rows),
        batch_size=float(items),
        batch_bytes=size,
        tensors=tensors,
        padding=lengths.padding,
        columns=columns_of_batch,
        batches=tuple(steady),
    )
