"""`verify`: does the loader yield what its user thinks it does, over workers, ranks and epochs?"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch.distributed as dist
from torch.utils.data import DataLoader

from gapless.errors import UsageError
from gapless.loading import forked
from gapless.loading.checks import mistakes
from gapless.loading.checks_common import World
from gapless.loading.checks_streams import foreign
from gapless.loading.rank_items import RankItems
from gapless.loading.ranks import initialized
from gapless.loading.record_items import record
from gapless.loading.simulated import dividing
from gapless.model.loading_mistakes import Verification

Target = DataLoader | Callable[[], DataLoader]


def verify(
    loader: Target, *, ranks: int | None = None, items: int = 20_000, seconds: float = 60.0
) -> Verification:
    """Mistakes that raise no error: items that come twice or never, random numbers and orders that repeat,
    last batches, ranks of different length (rules GAP311 to GAP318).

    The loader runs with its own workers for two epochs, at most `items` of an epoch on each rank and about
    `seconds` in all, in copies of this process: neither the loader nor any random state changes here. Of a
    map-style dataset the sampler is asked for its positions (50 times `items` at most, four epochs), and few
    items are made. A stream is also gone through once without workers, as the measure of what there is.

    Give a function that makes the loader where samplers or datasets look at the rank when they are made.
    With `ranks`, it is run as each of that many ranks, which are simulated one after the other; in a process
    group, every rank calls `verify` with its own loader, and gets what all have seen.

    Raises:
        UsageError: this is a process group of another size than `ranks`.
        LoaderError: the loader fails, as it would in training.
    """
    if not isinstance(loader, DataLoader) and not callable(loader):
        raise UsageError(f"verify() needs a DataLoader, or a function that returns one, not {loader!r}")
    world = dist.get_world_size() if initialized() else 1
    if world > 1 and ranks not in (None, world):
        raise UsageError(f"this process group has {world} ranks, but ranks={ranks} was given")
    count = ranks or world
    if count < 1:
        raise UsageError(f"ranks={count} is not positive")
    if world == 1 and count > 1:
        if not forked.available():
            raise UsageError(
                "ranks are simulated in forks of the process, which this system does not support"
            )
        if isinstance(loader, DataLoader):
            dividing(loader, count)
    look = functools.partial(_look, loader, most=items, seconds=seconds / (2 if world > 1 else count + 1))
    if world > 1:
        return _together(look)
    seen = tuple(look(rank, count, simulate=count > 1, alone=False) for rank in range(count))
    return _verification(World(seen, _alone(look, loader, seen[0], again=True)))


def verify_here(loader: DataLoader, items: int, seconds: float) -> Verification:
    """`verify` of what this process alone yields, be it one of several ranks: of others nothing is said.

    Positions that do not come here may well come there.
    """
    look = functools.partial(_look, loader, most=items, seconds=seconds / 2)
    seen: RankItems = look(0, 1, simulate=False, alone=False)
    alone: RankItems | None = None
    if seen.iterable or not seen.plain:
        alone = look(0, 1, simulate=False, alone=True)
    found = _verification(World((seen,), alone))
    if seen.iterable:
        return found
    return msgspec.structs.replace(
        found, mistakes=tuple(one for one in found.mistakes if one.code != "GAP313")
    )


def _look(
    loader: Target, rank: int, ranks: int, *, simulate: bool, alone: bool, most: int, seconds: float
) -> RankItems:
    """One rank, in a copy of this process."""

    # A process that is not copied must stay the rank it is.
    simulate = simulate and forked.available()

    def work(tell: forked.Tell) -> RankItems:
        until = time.monotonic() + seconds
        many = most if _streams(loader) else most * 50
        return record(loader, rank, ranks, simulate=simulate, alone=alone, most=many, until=until)

    return forked.measured(work, RankItems, seconds + 5.0, lambda part: None)


def _streams(loader: Target) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def _alone(look: Any, loader: Target, first: RankItems, *, again: bool) -> RankItems | None:
    """The same without workers and ranks, where that can be had."""
    made = not isinstance(loader, DataLoader)
    if not first.iterable and (not made or first.plain):
        return None
    return look(0, 1, simulate=(again and made) or first.iterable, alone=True)  # type: ignore[no-any-return]


def _together(look: Any) -> Verification:
    """In a process group: each rank looks at its own loader, and all at what was seen."""
    loader = look.args[0]
    mine: dict[str, Any] = {}
    try:
        seen = look(dist.get_rank(), dist.get_world_size(), simulate=False, alone=False)
        mine["seen"] = msgspec.json.encode(seen)
        if not dist.get_rank():
            alone = _alone(look, loader, seen, again=True)
            mine["alone"] = msgspec.json.encode(alone)
    except Exception as error:
        mine["error"] = error if isinstance(error, forked.LoaderError) else forked.LoaderError(str(error))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    failed = [found["error"] for found in every if "error" in found]
    if failed:
        raise failed[0]
    ranks = tuple(msgspec.json.decode(found["seen"], type=RankItems) for found in every)
    return _verification(World(ranks, msgspec.json.decode(every[0]["alone"], type=RankItems | None)))


def _verification(world: World) -> Verification:
    looked = sum(len(epoch.values()) for rank in world.ranks for epoch in rank.epochs)
    return Verification(
        mistakes=tuple(sorted(mistakes(world), key=lambda found: found.code)),
        ranks=len(world.ranks),
        workers=world.first.workers,
        items=looked,
        complete=world.complete,
        notes=tuple(_notes(world)),
    )


def _notes(world: World) -> list[str]:
    notes = []
    if not all(rank.epochs for rank in world.ranks):
        notes.append("the sampler yields keys that are not positions: which ones to expect is unknown")
    elif not world.complete:
        notes.append("the end of an epoch was not reached: lost items cannot be checked (items=, seconds=)")
    elif world.first.iterable and foreign(world):
        notes.append(
            "items depend on the worker that produces them: only the first items of each worker are compared"
        )
    if not all(rank.fingerprints for rank in world.ranks) and world.first.iterable:
        notes.append("the content of items cannot be compared: they are identified by their number only")
    return notes
