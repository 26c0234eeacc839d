"""Find mistakes of map-style datasets: indices that samplers yield, and random numbers of items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from gapless.loading.checks_common import (
    KEEP_ITEMS_REMEDY,
    MIN_ITEMS_TO_COMPARE,
    SINGLE_ITEM_REMEDY,
    RanksSeen,
    count_noun,
    last_batch,
    lost_items,
    repeated_by_ranks,
)
from gapless.loading.rank_items import GeneratorUse, RankItems
from gapless.model.loading_mistakes import Mistake, mistake


def check_positions(world: RanksSeen) -> Iterator[Mistake]:
    """Yield every mistake of a map-style dataset's loader."""
    for check in (_repeated_positions, _lost_positions, _same_numbers, _same_positions, _last_of_positions):
        yield from check(world)


def _repeated_positions(world: RanksSeen) -> Iterator[Mistake]:
    ranks = world.ranks
    if len(ranks) < 2 or not world.complete:
        return
    each = [rank.epochs[0].values() for rank in ranks]
    length = world.first.length
    if any(len(numpy.unique(part)) < len(part) - len(ranks) for part in each):
        return  # drawn with replacement: repeated items are no mistake
    extra = sum(map(len, each)) - len(numpy.unique(numpy.concatenate(each)))
    largest = max((size for rank in ranks for size in rank.epochs[0].batches()), default=1)
    same = length >= 2 * len(ranks) and all(len(numpy.unique(part)) == length for part in each)
    if same or extra > len(ranks) * largest:
        yield repeated_by_ranks(world, len(numpy.unique(numpy.concatenate(each))), extra, False)


def _lost_positions(world: RanksSeen) -> Iterator[Mistake]:
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
    yielded = [epoch.values() for rank in world.ranks for epoch in rank.epochs]
    missing = numpy.setdiff1d(wanted, numpy.concatenate(yielded))
    dropped = world.first.batch_size - 1 if world.first.drop_last else 0  # another rule reports these
    if len(missing) > len(world.ranks) * dropped:
        epochs = len(world.first.epochs)
        ranks = f"any of {count_noun(len(world.ranks), 'rank')}" if len(world.ranks) > 1 else "the sampler"
        observation = (
            f"{count_noun(len(missing), 'position')} of {len(wanted):,} never come from {ranks} in any of "
            f"{epochs} epochs"
        )
        yield lost_items(world, observation, len(missing), len(wanted), _POSITIONS_REMEDY)


_POSITIONS_REMEDY = (
    "let each rank take every n-th position of the same order (`DistributedSampler`) instead of n equal "
    "blocks that drop the remainder"
)


def _same_positions(world: RanksSeen) -> Iterator[Mistake]:
    first_rank = world.first
    if len(first_rank.epochs) < 2 or not first_rank.shuffles:
        return
    first, second = (epoch.values() for epoch in first_rank.epochs[:2])
    size = min(len(first), len(second))
    if size < MIN_ITEMS_TO_COMPARE or not numpy.array_equal(first[:size], second[:size]):
        return
    if bool((numpy.diff(first[:size]) > 0).all()):
        return  # in order: it does not shuffle
    where = (
        "though `set_epoch` was called" if first_rank.takes_epochs else "and the sampler has no `set_epoch`"
    )
    yield mistake(
        "GAP315",
        first_rank.sampler_line,
        f"{first_rank.sampler} shuffles every epoch the same way ({size:,} positions), {where}",
        "include the epoch in the seed: `manual_seed(seed + epoch)`, with `epoch` set by `set_epoch`",
        items=size,
    )


def _same_numbers(world: RanksSeen) -> Iterator[Mistake]:
    """Yield a mistake if workers, or epochs, start with random numbers in the same state."""
    first_rank = world.first
    reported: set[str] = set()
    used = [draw for draw in first_rank.draws if draw.used]
    for draw in used:
        workers = {
            d.worker for d in used if (d.name, d.epoch, d.start) == (draw.name, draw.epoch, draw.start)
        }
        epochs = {
            d.epoch for d in used if (d.name, d.worker, d.start) == (draw.name, draw.worker, draw.start)
        }
        if draw.name in reported or (len(workers) < 2 and len(epochs) < 2):
            continue
        reported.add(draw.name)
        yield _same_draws(first_rank, draw, len(workers), len(epochs))


def _same_draws(rank: RankItems, draw: GeneratorUse, workers: int, epochs: int) -> Mistake:
    alike = [f"in {workers} of {count_noun(rank.workers, 'worker')}"] if workers > 1 else []
    alike += [f"in {count_noun(epochs, 'epoch')}"] if epochs > 1 else []
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
        rank.line,
        f"`{draw.name}` draws the same random numbers {' and '.join(alike)}: {why}",
        remedy,
        workers=workers,
        epochs=epochs,
    )


def _last_of_positions(world: RanksSeen) -> Iterator[Mistake]:
    for rank in world.ranks:
        if not rank.epochs or not rank.complete or rank.batch_size < 2:
            continue
        sizes, items = rank.epochs[0].batches(), rank.length
        if rank.drop_last and not sizes and items:
            yield last_batch(
                rank, f"`drop_last=True` drops all of {count_noun(items, 'item')}", items, KEEP_ITEMS_REMEDY
            )
        elif not rank.drop_last and len(sizes) > 1 and sizes[-1] == 1:
            yield last_batch(rank, f"the last of {len(sizes):,} batches has 1 item", 1, SINGLE_ITEM_REMEDY)
        else:
            continue
        return
