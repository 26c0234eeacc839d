"""`verify`: check that a loader yields what its user expects over workers, ranks and epochs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch.distributed as dist
from torch.utils.data import DataLoader

from gapless.errors import UsageError
from gapless.loading import forked
from gapless.loading.checks_common import RanksSeen, ordering_line
from gapless.loading.checks_positions import check_positions
from gapless.loading.checks_streams import check_streams, has_unknown_items
from gapless.loading.rank_items import Epoch, RankItems
from gapless.loading.ranks import in_process_group
from gapless.loading.record_items import record_rank
from gapless.loading.simulated import rank_samplers
from gapless.model.loading_mistakes import Mistake, Verification, mistake

Target = DataLoader | Callable[[], DataLoader]


def verify(
    loader: Target, *, ranks: int | None = None, items: int = 20_000, seconds: float = 60.0
) -> Verification:
    """Find mistakes that raise no error: items that come twice or never, random numbers and orders that
    repeat, incomplete last batches, ranks of different length (rules GAP311 to GAP318).

    The loader runs with its own workers for two epochs, at most `items` of an epoch on each rank and about
    `seconds` in all, in copies of this process: neither the loader nor any random state changes here. Of a
    map-style dataset the sampler is asked for its indices (at most 50 times `items`, four epochs), and few
    items are made. A stream is also iterated once without workers, as the reference.

    Pass a function that makes the loader if samplers or datasets read the rank when they are created. With
    `ranks`, it is run as each of that many ranks, simulated one after the other; in a process group, every
    rank calls `verify` with its own loader, and gets the result for all.

    Raises:
        UsageError: this process group has another size than `ranks`.
        LoaderError: the loader fails, as it would in training.
    """
    if not isinstance(loader, DataLoader) and not callable(loader):
        raise UsageError(f"verify() needs a DataLoader, or a function that returns one, not {loader!r}")
    world = dist.get_world_size() if in_process_group() else 1
    if world > 1 and ranks not in (None, world):
        raise UsageError(f"this process group has {world} ranks, but ranks={ranks} was given")
    count = ranks or world
    if count < 1:
        raise UsageError(f"ranks={count} is not positive")
    if world == 1 and count > 1:
        if not forked.can_fork():
            raise UsageError(
                "ranks are simulated in forks of the process, which this system does not support"
            )
        if isinstance(loader, DataLoader):
            rank_samplers(loader, count)
    look = functools.partial(
        _record_rank, loader, most=items, seconds=seconds / (2 if world > 1 else count + 1)
    )
    if world > 1:
        return _verify_in_group(look)
    recorded = tuple(look(rank, count, simulate=count > 1, alone=False) for rank in range(count))
    return _verification(RanksSeen(recorded, _record_alone(look, loader, recorded[0], again=True)))


def verify_here(loader: DataLoader, items: int, seconds: float) -> Verification:
    """Run `verify` on what this process yields, even if it is one of several ranks.

    Items that do not come here (GAP313) may come on another rank, and are not reported.
    """
    look = functools.partial(_record_rank, loader, most=items, seconds=seconds / 2)
    recorded: RankItems = look(0, 1, simulate=False, alone=False)
    alone: RankItems | None = None
    if recorded.iterable or not recorded.plain:
        alone = look(0, 1, simulate=False, alone=True)
    verification = _verification(RanksSeen((recorded,), alone))
    if recorded.iterable:
        return verification
    return msgspec.structs.replace(
        verification, mistakes=tuple(mistake for mistake in verification.mistakes if mistake.code != "GAP313")
    )


def _record_rank(
    loader: Target, rank: int, ranks: int, *, simulate: bool, alone: bool, most: int, seconds: float
) -> RankItems:
    """Record what one rank yields, in a copy of this process."""

    # without a copy, this process must keep its own rank
    simulate = simulate and forked.can_fork()

    def work(tell: forked.Tell) -> RankItems:
        until = time.monotonic() + seconds
        many = most if _is_stream(loader) else most * 50
        return record_rank(loader, rank, ranks, simulate=simulate, alone=alone, most=many, until=until)

    return forked.run_in_copy(work, RankItems, seconds + 5.0, lambda part: None)


def _is_stream(loader: Target) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def _record_alone(look: Any, loader: Target, first: RankItems, *, again: bool) -> RankItems | None:
    """Record the data without workers and ranks; None if that is not needed or not possible."""
    is_factory = not isinstance(loader, DataLoader)
    if not first.iterable and (not is_factory or first.plain):
        return None
    return look(0, 1, simulate=(again and is_factory) or first.iterable, alone=True)  # type: ignore[no-any-return]


def _verify_in_group(look: Any) -> Verification:
    """Verify in a process group: each rank records its own loader, and all compare."""
    loader = look.args[0]
    mine: dict[str, Any] = {}
    try:
        recorded = look(dist.get_rank(), dist.get_world_size(), simulate=False, alone=False)
        mine["seen"] = msgspec.json.encode(recorded)
        if not dist.get_rank():
            alone = _record_alone(look, loader, recorded, again=True)
            mine["alone"] = msgspec.json.encode(alone)
    except Exception as error:
        mine["error"] = error if isinstance(error, forked.LoaderError) else forked.LoaderError(str(error))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    failed = [record["error"] for record in every if "error" in record]
    if failed:
        raise failed[0]
    ranks = tuple(msgspec.json.decode(record["seen"], type=RankItems) for record in every)
    return _verification(RanksSeen(ranks, msgspec.json.decode(every[0]["alone"], type=RankItems | None)))


def _verification(world: RanksSeen) -> Verification:
    looked = sum(len(epoch.values()) for rank in world.ranks for epoch in rank.epochs)
    return Verification(
        mistakes=tuple(sorted(find_mistakes(world), key=lambda mistake: mistake.code)),
        ranks=len(world.ranks),
        workers=world.first.workers,
        items=looked,
        complete=world.complete,
        notes=tuple(_notes(world)),
    )


def _notes(world: RanksSeen) -> list[str]:
    notes = []
    if not all(rank.epochs for rank in world.ranks):
        notes.append("the sampler yields keys that are not positions: which ones to expect is unknown")
    elif not world.complete:
        notes.append("the end of an epoch was not reached: lost items cannot be checked (items=, seconds=)")
    elif world.first.iterable and has_unknown_items(world):
        notes.append(
            "items depend on the worker that produces them: only the first items of each worker are compared"
        )
    if not all(rank.fingerprints for rank in world.ranks) and world.first.iterable:
        notes.append("the content of items cannot be compared: they are identified by their number only")
    return notes


def find_mistakes(world: RanksSeen) -> Iterator[Mistake]:
    """Yield every mistake."""
    yield from check_streams(world) if world.first.iterable else check_positions(world)
    yield from _check_lengths(world)


def _check_lengths(world: RanksSeen) -> Iterator[Mistake]:
    """Yield a mistake if ranks have different numbers of batches."""
    if len(world.ranks) < 2 or not all(rank.complete for rank in world.ranks):
        return
    for number in range(min(len(rank.epochs) for rank in world.ranks)):
        counts = [_count_batches(rank, rank.epochs[number]) for rank in world.ranks]
        fewest, most = min(counts), max(counts)
        if fewest == most:
            continue
        observation = (
            f"rank {counts.index(fewest)} gets {_batches(fewest)} and rank {counts.index(most)} {most:,}: "
            "at the end the other ranks wait for a rank that has already left the loop"
        )
        remedy = (
            "`gapless.loading.shard(dataset)` gives every rank the same number"
            if world.first.iterable
            else "`DistributedSampler` and `gapless.loading.BucketBatchSampler` give every rank the same "
            "number"
        )
        yield mistake("GAP318", ordering_line(world), observation, remedy, fewest=fewest, most=most)
        return


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _count_batches(rank: RankItems, epoch: Epoch) -> int:
    """Count the batches that the loop gets; recorded streams include incomplete ones."""
    sizes = epoch.batches()
    if not rank.iterable or not rank.drop_last:
        return len(sizes)
    return sum(size == rank.batch_size for size in sizes)
