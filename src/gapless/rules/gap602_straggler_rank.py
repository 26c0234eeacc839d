"""GAP602."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gapless.model import Hit, Profile, Ranks, RanksRule, Straggler
from gapless.model.ranks import Latecomers
from gapless.model.wording import count, duration, percent

_MIN_SHARE_LOST = 0.03
"""Share of a step that ranks have to lose before several are called slow."""
_MIN_SHARE_LOST_IN_ONE_STEP = 0.1
"""The same bound where a single step was recorded."""
_MIN_SHARE_OF_WAITING = 0.5
"""Share of all waiting that the named ranks cause together."""


class StragglerRank(RanksRule):
    """One rank arrives at the collectives later than its peers, and all of them wait for it.

    ## What waits
    No rank leaves an all-reduce, an all-gather or a reduce-scatter before the last one has arrived. The
    kernels of early ranks keep running without doing anything, and work queued after them waits too. The
    rank with the shortest kernels is the late one.

    ## Why it costs
    Every step takes as long as on the slowest rank, on all GPUs. In the profile of a rank that waits this
    looks like slow communication, and nothing there can be made faster.

    ## Example
    ```python
    for inputs, labels in loader:
        loss = train_step(inputs, labels)
        if rank == 0:
            writer.add_scalar("loss", loss.item())
            save_preview(model, inputs)
    ```

    ## Use instead
    ```python
    for step, (inputs, labels) in enumerate(loader):
        loss = train_step(inputs, labels)
        if rank == 0 and step % 100 == 0:
            pending.append(loss.detach().to("cpu", non_blocking=True))
    ```
    Work that only one rank does delays all: do it rarely, in another thread, or on all ranks. If the
    ranks get different amounts of work (sequences of different lengths, uneven shards), give them
    batches of equal cost. If the same kernels take longer on one GPU, check its clocks, its temperature
    and what else runs there; a slow loader shows up as idle time until the next batch.

    ## When it is fine
    If a different rank is last in each step: then the work is uneven, and no rank is slow. If a few ranks
    take turns being last, they are named together, each with its share of the waiting."""

    code = "GAP602"
    name = "straggler-rank"
    advice = (
        "make the slow rank as fast as its peers: move work that only this rank does out of the step, "
        "balance the batches, and check its GPU clocks and its loader"
    )
    change = "make the slow rank as fast as its peers"

    def of_ranks(self, ranks: Ranks) -> Iterator[Hit]:
        slow, many = ranks.straggler, ranks.latecomers
        if slow is None:
            if many is not None and _are_several_slow(many, len(ranks.profiles)):
                yield _hit_of_several(many, self.advice)
            return
        profile = ranks.profiles[slow.position]
        sites = (reason.site for reason in slow.reasons if reason.site is not None)
        site = next(
            (site_found for site_found in sites if site_found.line is not None or site_found.operator), None
        )
        yield Hit(
            evidence=(*_evidence(slow, profile), *_describe_other_ranks(slow, many)),
            remedy=_remedy(slow, self.advice),
            site=site,
            idle=round(slow.lost * max(profile.steps.count, 1)),
            calls=slow.last,
            steps=slow.slowest,
            rank=slow.rank,
        )


def _are_several_slow(many: Latecomers, ranks: int) -> bool:
    """Whether a few ranks, and not each in turn, are waited for long enough to report."""
    share = sum(rank.share for rank in many.late)
    few = 1 < len(many.late) <= ranks / 2
    return (
        few
        and share >= _MIN_SHARE_OF_WAITING
        and many.share >= (_MIN_SHARE_LOST if many.steps > 1 else _MIN_SHARE_LOST_IN_ONE_STEP)
    )


def _hit_of_several(many: Latecomers, advice: str) -> Hit:
    names = _join_words([str(rank.rank) for rank in many.late])
    shares = _join_words([percent(rank.share) for rank in many.late])
    step = "of a step" if many.steps > 1 else "of the one step"
    return Hit(
        evidence=(
            f"ranks {names} arrive last: {shares} of the time that ranks wait in "
            f"{count(many.shared, 'collective')} is spent on them",
            f"a rank waits {duration(many.lost)} {step} with nothing else to do, {percent(many.share)}",
        ),
        remedy=f"compare what ranks {names} do with the others; {advice}",
        change="make the slow ranks as fast as their peers",
        idle=round(many.lost * many.steps),
        calls=sum(rank.last for rank in many.late),
        steps=many.steps,
        rank=many.late[0].rank,
    )


def _describe_other_ranks(slow: Straggler, many: Latecomers | None) -> Iterator[str]:
    """Yield which other ranks are waited for."""
    other_ranks = [rank for rank in many.late if rank.rank != slow.rank] if many is not None else []
    if other_ranks:
        who = "rank" if len(other_ranks) == 1 else "ranks"
        names = _join_words([str(rank.rank) for rank in other_ranks])
        shares = _join_words([percent(rank.share) for rank in other_ranks])
        yield (
            f"{who} {names} {'is' if len(other_ranks) == 1 else 'are'} also waited for: {shares} "
            "of all waiting"
        )


def _join_words(parts: Sequence[str]) -> str:
    """Return ``3, 7 and 12``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _evidence(slow: Straggler, profile: Profile) -> Iterator[str]:
    peers = "its peer waits" if slow.peers == 1 else f"its {slow.peers} peers wait"
    step = f"of each {duration(profile.steps.mean)} step" if slow.steps > 1 else "of the one step"
    yield (
        f"rank {slow.rank} arrives last: {peers} {duration(slow.lost)} {step} for it, {percent(slow.share)}"
    )
    when = f"in {slow.slowest} of {count(slow.steps, 'step')}, " if slow.steps > 1 else ""
    most = f"the last to arrive for {percent(slow.blame)} of the time that ranks wait"
    yield f"it is the slowest {when}and {most} in {count(slow.shared, 'collective')}"
    for reason in slow.reasons:
        yield f"rank {slow.rank}: {reason.text}"
    if not slow.reasons:
        yield "the recording does not show what takes it longer than its peers"


def _remedy(slow: Straggler, advice: str) -> str:
    if not slow.reasons:
        return f"record rank {slow.rank} and a peer with `with_stack=True` and compare what they do; {advice}"
    first = slow.reasons[0]
    line = first.site.line if first.site else None
    if line is not None:
        return f"look at what rank {slow.rank} does at `{line.where}` that its peers do not; {advice}"
    return advice
