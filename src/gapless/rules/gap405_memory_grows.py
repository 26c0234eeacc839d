"""GAP405."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory import Holder
from gapless.model.memory_report import MemoryReport
from gapless.model.source import SourceLine
from gapless.model.wording import binary_size, count, each_time, size
from gapless.rules import _holders as holders
from gapless.rules import _memory as memory_rules


class MemoryGrows(ProfileRule, MemoryRule):
    """Each step leaves tensors on the GPU that no later step frees: memory grows until it runs out.

    ## What waits
    Nothing at first. When the GPU is full, the allocator waits for it, returns its cache and tries again,
    more and more often, until a request fails.

    ## Why it costs
    A tensor with an autograd graph keeps the whole graph alive: a list of losses keeps the activations of
    every step in the list.

    ## Example
    ```python
    losses = []
    for inputs, targets in loader:
        loss = criterion(model(inputs), targets)
        losses.append(loss)
    ```

    ## Use instead
    ```python
    total = torch.zeros((), device="cuda")
    for inputs, targets in loader:
        loss = criterion(model(inputs), targets)
        total += loss.detach()
    ```
    `detach()` drops the graph. A running sum does not grow; a list of values can be moved to the CPU once
    in a while, in one copy.

    ## When it is fine
    Where you need what is kept and the run ends before it fills the GPU, such as the predictions of one
    epoch."""

    code = "GAP405"
    name = "memory-grows"
    advice = (
        "keep `tensor.detach()`, or a running sum, instead of tensors with their autograd graph, and clear "
        "lists at the end of the epoch"
    )
    change = "keep `tensor.detach()`, not tensors with their graph"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        lows = _minima_of_steps(profile)[memory_rules.WARM_UP :]
        rises = [after - before for before, after in pairwise(lows)]
        if len(rises) < _MIN_RISES or min(rises) <= 0:
            return
        mean = sum(rises) // len(rises)
        if mean < _MIN_GROWTH_BYTES or min(rises) < mean / 2 or max(rises) > 2 * mean:
            return  # caches and batches of many lengths do not grow evenly
        yield Hit(
            evidence=(
                f"in each of {count(len(rises), 'step')} the minimum of allocated memory is {size(mean)} "
                "higher than in the step before",
            ),
            remedy=self.advice,
            bytes=sum(rises),
            steps=len(rises),
        )

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        if not memory_rules.is_leaking(memory):
            return
        steps = memory.growth[0].steps
        unused = {graph.line for graph in memory.unused_graphs if not graph.training}
        models = memory.growth[0].kind in _MODEL_KINDS
        remedy, change = _RELEASE_MODELS if models else (self.advice, "")
        named = memory.holders or (None,)
        for position, holder in enumerate(named):
            line = holder.line if holder is not None else None
            yield Hit(
                evidence=(
                    *(_describe_growth(memory) if not position else ()),
                    *_describe_holder(holder, memory),
                ),
                remedy=holders.advise_holder(holder, line in unused) if holder is not None else remedy,
                change=holders.short_advice(holder, line in unused) if holder is not None else change,
                site=memory_rules.memory_site(line or memory.growth[0].line),
                bytes=holder.bytes if holder is not None else memory.grows_by * steps,
                steps=steps,
                every=holder.every if holder is not None else memory.grows_every,
            )


def _describe_growth(memory: MemoryReport) -> Iterator[str]:
    """Yield how much of each step remains, and how many more steps fit."""
    every, left = memory.grows_every, memory.lasts
    first = next(growth for growth in memory.growth if growth.every == every)
    tensors = sum(growth.tensors * every / growth.every for growth in memory.growth)
    steps = "step" if left == 1 else "steps"
    after = f"; the GPU is full after {left:,} more {steps}" if left >= 0 else ""
    if memory.finished and memory.lack is None:
        after = (
            f"; the run came to its end with {binary_size(memory.baseline.peak_reserved)} reserved at most"
        )
    when = f"each of {first.steps} steps" if every == 1 else f"every {every} steps ({first.steps} times)"
    yield (
        f"{binary_size(memory.grows_by)} in {count(round(tensors, 1), 'tensor')} "
        f"{'remain from' if every == 1 else 'remain'} {when}{after}"
    )


def _describe_holder(holder: Holder | None, memory: MemoryReport) -> Iterator[str]:
    """Yield who keeps the memory, if known, and where it is allocated."""
    if holder is not None:
        graph = " through its autograd graph" if holders.is_kept_by_graphs(holder) else ""
        yield (
            f"{holders.describe_holder(holder)} {'keep' if holder.alike else 'keeps'} "
            f"{binary_size(holder.per_step)} more {_describe_interval(holder)}{graph}"
            + (f"; {also}" if (also := _lines([*holder.lines[1:]], "it also grows at")) else "")
        )
        if holder.most >= 0:
            yield holders.describe_full_size(holder)
        return
    first, *further = memory.growth
    whole = memory.grows_by
    named = [growth.line for growth in further if growth.line and growth.bytes >= _MIN_SHARE_TO_NAME * whole][
        :_MAX_LINES_NAMED
    ]
    more = _lines(named, "more at")
    yield f"{binary_size(first.bytes)} of it are allocated at this line{f', {more}' if more else ''}"


def _describe_interval(holder: Holder) -> str:
    return "in each step" if holder.every == 1 else each_time(holder.every)


def _lines(lines: Sequence[SourceLine], words: str) -> str:
    return f"{words} {', '.join(line.short for line in lines)}" if lines else ""


def _minima_of_steps(profile: Profile) -> list[int]:
    """Return the least allocated memory in each step; [] if a step has no point of the curve."""
    memory, steps = profile.memory, profile.steps
    if steps.source == "span" or steps.count < 2 or not memory.allocated:
        return []
    lows = []
    for start, end in zip(steps.start, steps.end, strict=False):
        low, high = bisect_left(memory.time, start), bisect_right(memory.time, end)
        if low >= high:
            return []
        lows.append(min(memory.allocated[low:high]))
    return lows


_MODEL_KINDS = ("parameter", "gradient", "optimizer")
"""Kinds of tensors that live as long as a model or an optimizer."""
_RELEASE_MODELS = (
    "models of earlier passes stay: release each when it is done (`del model, optimizer`), or keep its "
    "`state_dict()` on the CPU",
    "release each model when it is done, or keep it on the CPU",
)
_MIN_RISES = 4
"""Rises from step to step that show growth."""
_MIN_GROWTH_BYTES = 1 << 20
"""Bytes per step from which a curve shows growth, not rounding."""
_MAX_LINES_NAMED = 3
"""Further lines that are named."""
_MIN_SHARE_TO_NAME = 0.05
"""Share of the growth from which a line is named."""
