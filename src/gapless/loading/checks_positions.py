"""Mistakes of map-style datasets: the positions that samplers give, and the random numbers of items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from gapless.loading.checks_common import ENOUGH, NOTHING, SINGLE, World, by_ranks, last, lost, of
from gapless.loading.rank_items import Draws, RankItems
from gapless.model.loading_mistakes import Mistake, mistake


def of_positions(world: World) -> Iterator[Mistake]:
    """Every mistake of a map-style dataset's loader."""
    for check in (_repeated_positions, _lost_positions, _same_numbers, _same_positions, _last_of_positions):
        yield from check(world)


def _repeated_positions(world: World) -> Iterator[Mistake]:
    ranks = world.ranks
    if len(ranks) < 2 or not world.complete:
        return
    each = [rank.epochs[0].values() for rank in ranks]
    length = world.first.length
    if any(len(numpy.unique(part)) < len(part) - len(ranks) for part in each):
        return  # drawn with replacement: nothing follows from an item that comes twice
    extra = sum(map(len, each)) - len(numpy.unique(numpy.concatenate(each)))
    largest = max((size for rank in ranks for size in rank.epochs[0].batches()), default=1)
    same = length >= 2 * len(ranks) and all(len(numpy.unique(part)) == length for part in each)
    if same or extra > len(ranks) * largest:
        yield by_ranks(world, len(numpy.unique(numpy.concatenate(each))), extra, False)


def _lost_positions(world: World) -> Iterator[Mistake]:
    if not world.complete:
        return
    if world.first.plain:
        wanted = numpy.arange(world.first.length)
    elif world.alone is not None:
        wanted = numpy.unique(numpy.concatenate([epoch.values() for epoch in world.alone.epochs]))
        if any(len(numpy.unique(epoch.values())) < len(epoch.values()) for epoch in world.alone.epochs):
            return  # drawn with replacement
    else:
        return
    given = [epoch.values() for rank in world.ranks for epoch in rank.epochs]
    missing = numpy.setdiff1d(wanted, numpy.concatenate(given))
    dropped = world.first.batch_size - 1 if world.first.drop_last else 0  # told by another rule
    if len(missing) > len(world.ranks) * dropped:
        epochs = len(world.first.epochs)
        ranks = f"any of {of(len(world.ranks), 'rank')}" if len(world.ranks) > 1 else "the sampler"
        seen = (
            f"{of(len(missing), 'position')} of {len(wanted):,} never come from {ranks} in any of "
            f"{epochs} epochs"
        )
        yield lost(world, seen, len(missing), len(wanted), _POSITIONS)


_POSITIONS = (
    "let each rank take every n-th position of the same order (`DistributedSampler`) instead of n equal "
    "blocks that drop the remainder"
)


def _same_positions(world: World) -> Iterator[Mistake]:
    one = world.first
    if len(one.epochs) < 2 or not one.shuffles:
        return
    first, second = (epoch.values() for epoch in one.epochs[:2])
    size = min(len(first), len(second))
    if size < ENOUGH or not numpy.array_equal(first[:size], second[:size]):
        return
    if bool((numpy.diff(first[:size]) > 0).all()):
        return  # in order: it does not shuffle
    where = "though `set_epoch` was called" if one.takes_epochs else "and the sampler has no `set_epoch`"
    yield mistake(
        "GAP315",
        one.sampler_line,
        f"{one.sampler} shuffles every epoch the same way ({size:,} positions), {where}",
        "include the epoch in the seed: `manual_seed(seed + epoch)`, with `epoch` set by `set_epoch`",
        items=size,
    )


def _same_numbers(world: World) -> Iterator[Mistake]:
    """Workers, or epochs, whose random numbers begin in the same state."""
    one = world.first
    told: set[str] = set()
    used = [draw for draw in one.draws if draw.used]
    for draw in used:
        workers = {
            d.worker for d in used if (d.name, d.epoch, d.start) == (draw.name, draw.epoch, draw.start)
        }
        epochs = {
            d.epoch for d in used if (d.name, d.worker, d.start) == (draw.name, draw.worker, draw.start)
        }
        if draw.name in told or (len(workers) < 2 and len(epochs) < 2):
            continue
        told.add(draw.name)
        yield _same_draws(one, draw, len(workers), len(epochs))


def _same_draws(one: RankItems, draw: Draws, workers: int, epochs: int) -> Mistake:
    alike = [f"in {workers} of {of(one.workers, 'worker')}"] if workers > 1 else []
    alike += [f"in {of(epochs, 'epoch')}"] if epochs > 1 else []
    if draw.name.startswith("self"):
        why = "the generator is created once, and every worker gets a copy of it"
        remedy = (
            f"create `{draw.name}` in the worker, from the worker's seed: in `worker_init_fn`, set it to "
            "`numpy.random.default_rng(torch.initial_seed())`, or use torch's random numbers"
        )
    else:
        why = "`worker_init_fn` gives every worker the same seed"
        remedy = "seed it from `torch.initial_seed()`, which differs by worker and epoch, or do not seed it"
    return mistake(
        "GAP314",
        one.line,
        f"`{draw.name}` draws the same random numbers {' and '.join(alike)}: {why}",
        remedy,
        workers=workers,
        epochs=epochs,
    )


def _last_of_positions(world: World) -> Iterator[Mistake]:
    for rank in world.ranks:
        if not rank.epochs or not rank.complete or rank.batch_size < 2:
            continue
        sizes, items = rank.epochs[0].batches(), rank.length
        if rank.drop_last and not sizes and items:
            yield last(rank, f"`drop_last=True` drops all of {of(items, 'item')}", items, NOTHING)
        elif not rank.drop_last and len(sizes) > 1 and sizes[-1] == 1:
            yield last(rank, f"the last of {len(sizes):,} batches has 1 item", 1, SINGLE)
        else:
            continue
        return
