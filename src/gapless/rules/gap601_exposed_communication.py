"""GAP601."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.model import Hit, Profile, ProfileRule, Ranks, Site
from gapless.model.profile import SYNCHRONIZING, Cost
from gapless.model.wording import duration, percent, three_digits
from gapless.rules._profile import describe_time, per_step_words, share_of_steps
from gapless.rules._traffic import CollectiveKernels, step_traffic

MIN_SHARE_OF_STEPS = 0.1
"""Share of the steps from which the TensorBoard plugin warned of communication."""

_ONE_RANK = (
    "on a single rank, waiting for a late rank looks the same: only the profiles of all ranks together can "
    "tell"
)
_FIND_RANK = "first find the late rank: pass the profiles of all ranks to `gapless trace` together"
_MAX_KINDS_LISTED = 3
"""Kinds of collectives listed, the longest first; the others are counted."""
_MAIN_SHARE = 0.5
"""Share from which one cause or place stands for the whole: the majority."""

_ALL_REDUCE = (
    "send the gradients during backward:  DistributedDataParallel starts a bucket as soon as it is full "
    "(`bucket_cap_mb` smaller to start earlier, `gradient_as_bucket_view=True`); with gradient "
    "accumulation skip all but the last exchange (`with model.no_sync():`); send half the bytes with "
    "`model.register_comm_hook(None, default_hooks.bf16_compress_hook)`"
)
_ONE_ALL_REDUCE = (
    "one all-reduce per step cannot overlap with the backward pass that fills it: use "
    "DistributedDataParallel, or smaller buckets (`bucket_cap_mb`), so that the first gradients are sent "
    "while the others are computed; with gradient accumulation, `with model.no_sync():` in all but the last"
)
_SHARDED = (
    "gather the next layer's parameters while this one computes: `backward_prefetch=BACKWARD_PRE` and "
    "`forward_prefetch=True` in FSDP, `set_modules_to_forward_prefetch` with `fully_shard`; wrap whole "
    "blocks, keep parameters between forward and backward if they fit (`reshard_after_forward=False`), or "
    "shard within a machine and replicate between machines"
)
_REMEDIES = {
    "all_reduce": _ALL_REDUCE,
    "all_gather": _SHARDED,
    "reduce_scatter": _SHARDED,
    "all_to_all": (
        "start the exchange before its result is needed and compute something else meanwhile: overlap the "
        "next batch's exchange in a pipeline (TorchRec's `TrainPipelineSparseDist`), or an expert layer's "
        "with the shared experts; send fewer bytes (bf16 or fp8 outputs)"
    ),
    "broadcast": (
        "the buffers of the model are sent in each forward pass: `DistributedDataParallel(..., "
        "broadcast_buffers=False)` if ranks need not agree on them"
    ),
    "send_recv": (
        "stages wait for one another: more and smaller micro-batches, an interleaved or zero-bubble "
        "schedule, and stages of equal length"
    ),
    "barrier": "remove the barrier: a collective already orders the ranks",
}


class ExposedCommunication(ProfileRule):
    """The GPU only communicates: it computes nothing while collectives run.

    ## What waits
    Collective kernels run on their own stream, and work that needs their result waits for them. If no
    compute kernel is left to run meanwhile, the GPU only sends and receives, or waits for ranks that have
    not arrived yet.

    ## Why it costs
    The multiprocessors are idle all that time. Communication that overlaps with compute kernels costs almost
    nothing, so the same bytes may be free or take a third of the step.

    ## Example
    ```python
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
    ```

    ## Use instead
    ```python
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    for step, (inputs, labels) in enumerate(loader):
        last = (step + 1) % accumulate == 0
        with contextlib.nullcontext() if last else model.no_sync():
            criterion(model(inputs), labels).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    ```
    DistributedDataParallel sends gradients in buckets while backward computes the rest. With sharded
    parameters, prefetch the next layer's.

    ## When it is fine
    At the end of backward, part of the last bucket never overlaps. On a slow network this may be the best
    possible: then compute more between two exchanges (larger batches, gradient accumulation)."""

    code = "GAP601"
    name = "exposed-communication"
    advice = (
        "overlap collectives with computation: gradient buckets during backward, parameters prefetched, and "
        "fewer exchanges with gradient accumulation"
    )
    change = "overlap collectives with computation"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        costs = [cost for cost in profile.costs if cost.cause == "communication" and cost.idle > 0]
        listed = sum(cost.idle for cost in costs)
        idle = min(listed or profile.split.communication, profile.idle or listed)
        if share_of_steps(profile, idle) < MIN_SHARE_OF_STEPS:
            return
        kinds = step_traffic(profile)
        longest = max(costs, key=lambda cost: cost.end - cost.start, default=None)
        yield Hit(
            evidence=tuple(_evidence(profile, idle, kinds)),
            remedy=_remedy(kinds, self.advice),
            site=_main_site(costs),
            idle=idle,
            calls=sum(len(kind.lengths) for kind in kinds),
            steps=max((cost.steps for cost in costs), default=profile.steps.count),
            start=longest.start if longest else 0,
            end=longest.end if longest else 0,
        )

    def beside(self, hit: Hit, ranks: Ranks) -> Hit:
        if not ranks.shared:
            return hit
        waiting, transfer = (
            sum(getattr(rank, name) for rank in ranks.shared) for name in ("waiting", "transfer")
        )
        evidence = [sentence for sentence in hit.evidence if sentence != _ONE_RANK]
        evidence.append(
            f"in the collectives recorded by several of these ranks, a rank waits {duration(waiting)} per "
            f"step for the last rank and transfers for {duration(transfer)}"
        )
        remedy = hit.remedy
        if _FIND_RANK in remedy:
            late = ranks.latecomers.late if ranks.latecomers is not None else ()
            names = ", ".join(str(rank.rank) for rank in late)
            who = (
                f"find out why {'rank' if len(late) == 1 else 'ranks'} {names} "
                f"{'arrives' if len(late) == 1 else 'arrive'} late (GAP602)"
            )
            remedy = remedy.replace(
                _FIND_RANK, who if late else "each rank is late in turn: balance the work"
            )
        return msgspec.structs.replace(hit, evidence=tuple(evidence), remedy=remedy)


def _main_site(costs: list[Cost]) -> Site | None:
    """Return the place with most of the idle time, if there is one."""
    largest = max(costs, key=lambda cost: cost.idle, default=None)
    if largest is None or largest.idle < _MAIN_SHARE * sum(cost.idle for cost in costs):
        return None
    return largest.site if largest.site.operator or largest.site.stack else None


def _evidence(profile: Profile, idle: int, kinds: list[CollectiveKernels]) -> Iterator[str]:
    yield f"the GPU does nothing but communicate for {describe_time(profile, idle)}"
    if not kinds:
        return
    listed = "; ".join(_describe_kind(kind) for kind in kinds[:_MAX_KINDS_LISTED])
    more = len(kinds) - _MAX_KINDS_LISTED
    yield f"{per_step_words(profile)}: {listed}" + (f"; {more} other kinds" if more > 0 else "")
    waiting = sum(kind.excess for kind in kinds)
    total = sum(kind.time for kind in kinds)
    if 0 < waiting >= MIN_SHARE_OF_STEPS * total:
        yield (
            f"{duration(waiting)} of these {duration(total)} exceed the fastest run of the same "
            "collectives: waiting for other ranks, or sharing the links"
        )
    elif any(kind.name in SYNCHRONIZING for kind in kinds):
        yield _ONE_RANK


def _describe_kind(kind: CollectiveKernels) -> str:
    number = three_digits(kind.count)
    size = f" of {_format_elements(kind.sent)} elements in all" if kind.sent >= 0 else ""
    group = f" in group {kind.group}" if kind.group and not kind.group.startswith("stream") else ""
    return f"{number} {kind.name}{group}{size}, {duration(kind.time)}"


def _format_elements(number: float) -> str:
    for unit, length in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= 0.9995 * length:
            return f"{three_digits(number / length)} {unit}"
    return three_digits(number)


def _remedy(kinds: list[CollectiveKernels], advice: str) -> str:
    if not kinds:
        return advice
    total = sum(kind.time for kind in kinds)
    waiting = sum(kind.excess for kind in kinds)
    if 0 < waiting >= _MAIN_SHARE * total:
        share = percent(waiting / total)
        return f"{share} of it is not transfer: {_FIND_RANK}"
    main = kinds[0]
    if main.name == "all_reduce" and main.count < 1.5:
        return _ONE_ALL_REDUCE
    return _REMEDIES.get(main.name, advice)
