"""GAP602."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, Ranks, RanksRule, Straggler
from gapless.model.wording import count, duration, percent


class StragglerRank(RanksRule):
    """One rank comes later to the collectives than its peers, and all of them wait for it.

    ## What waits
    No rank leaves an all-reduce, an all-gather or a reduce-scatter before the last has come. The kernels of
    those who came early run on and do nothing, and what is queued behind them waits too. The rank with the
    shortest kernels is the late one.

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
    What only one rank does delays all: do it seldom, in another thread, or on all ranks alike. Where the
    ranks get different amounts of work (sequences of different lengths, uneven shards), give batches of
    equal cost. Where the same kernels take longer on one GPU, look at its clocks, its temperature and at
    what else runs there; a slow loader shows as idleness until the next batch.

    ## When it is fine
    Where another rank is the last in each step: then the work is uneven, and no rank is slow.
    """

    code = "GAP602"
    name = "straggler-rank"
    advice = (
        "make the slow rank as fast as its peers: move what only it does out of the step, balance the "
        "batches, and check its GPU's clocks and its loader"
    )
    change = "make the slow rank as fast as its peers"

    def of_ranks(self, ranks: Ranks) -> Iterator[Hit]:
        slow = ranks.straggler
        if slow is None:
            return
        profile = ranks.profiles[slow.position]
        sites = (reason.site for reason in slow.reasons if reason.site is not None)
        site = next((one for one in sites if one.line is not None or one.operator), None)
        yield Hit(
            evidence=tuple(_evidence(slow, profile)),
            remedy=_remedy(slow, self.advice),
            site=site,
            idle=round(slow.lost * max(profile.steps.count, 1)),
            calls=slow.last,
            steps=slow.slowest,
            rank=slow.rank,
        )


def _evidence(slow: Straggler, profile: Profile) -> Iterator[str]:
    peers = "its peer waits" if slow.peers == 1 else f"its {slow.peers} peers wait"
    step = f"of each {duration(profile.steps.mean)} step" if slow.steps > 1 else "of the one step"
    yield f"rank {slow.rank} comes last: {peers} {duration(slow.lost)} {step} for it, {percent(slow.share)}"
    when = f"in {slow.slowest} of {count(slow.steps, 'step')}, " if slow.steps > 1 else ""
    most = f"the last to come for {percent(slow.blame)} of the time that ranks wait"
    yield f"it is the slowest {when}and {most} in {count(slow.shared, 'collective')}"
    for reason in slow.reasons:
        yield f"rank {slow.rank}: {reason.text}"
    if not slow.reasons:
        yield "nothing that was recorded tells what it does longer than its peers"


def _remedy(slow: Straggler, advice: str) -> str:
    if not slow.reasons:
        return f"record rank {slow.rank} and a peer with `with_stack=True` and compare what they do; {advice}"
    first = slow.reasons[0]
    line = first.site.line if first.site else None
    if line is not None:
        return f"look at what rank {slow.rank} does at `{line.where}` that its peers do not; {advice}"
    return advice
