"""GAP603."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent, three_digits
from gapless.rules._profile import per_step, per_step_words, share_of_steps
from gapless.rules._traffic import CollectiveKernels, step_traffic

MANY = 24
"""Small collectives per step: two dozen, which no layout of a model needs."""

SMALL = 4096
"""Elements up to which a collective is all latency: 16 kB travel in less time than a launch takes."""

SCALARS = 64
"""Elements up to which many of one size are no activations of layers that follow one another."""

SHORT = 20_000
"""Nanoseconds up to which a kernel counts as small where sizes were not recorded."""

OVERHEAD = 50_000
"""Nanoseconds that a collective takes at least, from the call on the CPU to the end of its kernel."""

MIN_SHARE_OF_STEP = 0.01
"""Share of a step that small collectives must take to be reported."""

_NAMES = ("all_reduce", "all_gather", "broadcast", "reduce")


class ManySmallCollectives(ProfileRule):
    """Dozens of tiny collectives in a step, where one would carry the same data.

    ## What waits
    A collective of a few elements takes as long as one of several thousand: a launch, a round through all
    ranks, the end. Sent one by one, each parameter's gradient or each metric's state pays for that again,
    and the ranks wait for one another each time.

    ## Why it costs
    About 50 microseconds each on one machine, and more between machines, on both CPU and GPU; and
    each is another point where all ranks wait for the slowest.

    ## Example
    ```python
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
    ```

    ## Use instead
    ```python
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.distributed.all_reduce(flat)
    ```
    DistributedDataParallel does this in buckets. For metrics, reduce the states of the whole collection at
    once (`gapless.metrics` does), and only where a value is read.

    ## When it is fine
    Where each needs the result of the one before, as between the layers of a tensor-parallel model: those are
    not reported if their sizes show it."""

    code = "GAP603"
    name = "many-small-collectives"
    advice = (
        "send one tensor instead of many: DistributedDataParallel's buckets for gradients, one flat "
        "reduction for the states of all metrics"
    )
    change = "send one tensor instead of many"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        for kind in step_traffic(profile):
            small = _only_small(profile, kind)
            if small is None or small.count < MANY:
                continue
            if profile.steps.mean <= 0 or small.count * OVERHEAD < MIN_SHARE_OF_STEP * profile.steps.mean:
                continue
            yield _hit(profile, kind, small)


def _only_small(profile: Profile, kind: CollectiveKernels) -> CollectiveKernels | None:
    """Return the collectives too small to be worth sending alone, unless they must follow one another."""
    if kind.name not in _NAMES:
        return None
    if kind.sent < 0:
        # Short kernels between layers are seen in inference only: activations in training are large.
        if not _is_training(profile):
            return None
        return kind.only(row for row, length in enumerate(kind.lengths) if length <= SHORT)
    small = kind.only(row for row, count in enumerate(kind.elements) if count <= SMALL)
    if small is None or (len(set(small.elements)) == 1 and small.elements[0] > SCALARS):
        return None
    return small


def _is_training(profile: Profile) -> bool:
    return any(phase.name == "backward" and max(phase.host, phase.device) > 0 for phase in profile.phases)


def _hit(profile: Profile, kind: CollectiveKernels, small: CollectiveKernels) -> Hit:
    number = three_digits(small.count)
    group = f" in group {kind.group}" if kind.group and not kind.group.startswith("stream") else ""
    if small.sent >= 0:
        size = f"of at most {max(small.elements):,} elements"
    else:
        size = f"whose kernels take at most {duration(max(small.lengths))}"
    evidence = [
        f"{number} {kind.name} {per_step_words(profile)}{group} {size}, {duration(small.time)} of kernels"
    ]
    if kind.count > small.count:
        evidence.append(f"{three_digits(kind.count - small.count)} larger ones in addition")
    total = small.count * OVERHEAD
    share = percent(share_of_steps(profile, total * profile.steps.count))
    evidence.append(
        f"at {duration(OVERHEAD)} each, from call to end, {duration(total)} "
        f"{per_step_words(profile)}, {share}"
    )
    exposed = per_step(profile, profile.split.communication)
    idle = min(small.time, exposed) * profile.steps.count
    return Hit(
        evidence=tuple(evidence),
        remedy=_remedy(small),
        idle=min(round(idle), max(profile.idle, 0)),
        calls=round(small.count * profile.steps.count),
        steps=profile.steps.count,
    )


def _remedy(small: CollectiveKernels) -> str:
    if small.name == "all_gather":
        return (
            "gather once: put the states of all metrics into one tensor (`gapless.metrics` reduces a whole "
            "collection at once), and only where a value is read"
        )
    if small.name == "broadcast":
        return (
            "send buffers and parameters as one flat tensor, or only once: `DistributedDataParallel(..., "
            "broadcast_buffers=False)` if ranks need not agree on buffers"
        )
    if small.sent >= 0 and max(small.elements) <= SCALARS:
        return (
            "reduce once: put what is logged or the metrics' states into one tensor and all-reduce that "
            "(`gapless.metrics` does so for a collection), and only in the steps where it is read"
        )
    return (
        "put the gradients into buckets: DistributedDataParallel with its default `bucket_cap_mb`, or "
        "`torch.cat` and one all-reduce; a model compiled as a whole needs the same "
        "(`torch._dynamo.config.optimize_ddp`)"
    )
