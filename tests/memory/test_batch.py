"""The largest batch that fits."""

from __future__ import annotations

import pytest

from gapless.errors import UsageError
from gapless.memory.batch import batch_size, largest_batch
from gapless.memory.simulate import simulate
from gapless.memory.sizes import MIB
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, FREE, STEP, MemoryRun


def training(batch: int, steps: int = 6, layers: int = 5, curve: int = 0) -> MemoryRun:
    rows: list[tuple[int, int, int]] = [(ALLOC, 0, 40 * MIB)]
    batches, count = [], 1
    for _ in range(steps):
        kept = []
        batches.append((len(rows), (batch, 3, 8)))
        for layer in range(layers):
            rows.append((ALLOC, count, batch * MIB * (layer + 1) + 512 + curve * batch * batch))
            kept.append(count)
            count += 1
        rows += [(FREE, ident, 0) for ident in reversed(kept)]
        rows.append((STEP, -1, 0))
    action, ident, size = zip(*rows, strict=True)
    zeros = (0,) * len(rows)
    return MemoryRun(
        action=action,
        ident=ident,
        size=size,
        stream=zeros,
        place=zeros,
        batches=tuple(batches),
        path="run.json",
    )


@pytest.mark.parametrize("room", [100, 1000, 5000])
def test_it_fits_and_one_more_does_not(room: int) -> None:
    where = TrialConditions(capacity=room * MIB)
    largest = largest_batch([training(2), training(4)], where)
    assert largest.recorded == (2, 4)
    for batch, fits in ((largest.batch, True), (largest.batch + 1, False)):
        assert (simulate(training(batch), capacity=room * MIB).shortage is None) is fits
    assert 0 < largest.without_retries <= largest.batch
    assert largest.outcome == simulate(training(largest.without_retries), capacity=room * MIB)


def test_none_fits() -> None:
    assert largest_batch([training(2), training(4)], TrialConditions(capacity=30 * MIB)).batch == 0


def test_more_steps_in_one_of_them_do_not_matter() -> None:
    where = TrialConditions(capacity=1000 * MIB)
    assert largest_batch([training(2), training(4, steps=9)], where) == largest_batch(
        [training(2), training(4)], where
    )


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([training(2), training(2)], "all runs have batches of 2"),
        ([training(2), training(4, layers=6)], "the same things"),
        ([training(2, curve=99999), training(4, curve=99999), training(9, curve=99999)], "do not scale"),
    ],
    ids=["equal", "other", "curve"],
)
def test_refused(runs: list[MemoryRun], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        largest_batch(runs, TrialConditions(capacity=1000 * MIB))


def test_a_run_without_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="does not record its batch size"):
        batch_size(MemoryRun())
