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
from gapless.rules import _memory as held


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
        lows = _lows(profile)[held.WARM_UP :]
        rises = [after - before for before, after in pairwise(lows)]
        if len(rises) < _LEAST or min(rises) <= 0:
            return
        mean = sum(rises) // len(rises)
        if mean < _SEEN or min(rises) < mean / 2 or max(rises) > 2 * mean:
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
        if not held.leaks(memory):
            return
        steps = memory.growth[0].steps
        unused = {one.line for one in memory.unused_graphs if not one.training}
        models = memory.growth[0].kind in _OF_MODELS
        remedy, change = _NO_MODELS if models else (self.advice, "")
        named = memory.holders or (None,)
        for position, holder in enumerate(named):
            line = holder.line if holder is not None else None
            yield Hit(
                evidence=(*(_whole(memory) if not position else ()), *_of(holder, memory)),
                remedy=holders.remedy(holder, line in unused) if holder is not None else remedy,
                change=holders.change(holder, line in unused) if holder is not None else change,
                site=held.site(line or memory.growth[0].line),
                bytes=holder.bytes if holder is not None else memory.grows_by * steps,
                steps=steps,
                every=holder.every if holder is not None else memory.grows_every,
            )


def _whole(memory: MemoryReport) -> Iterator[str]:
    """What stays of each step, and how long that lasts."""
    every, left = memory.grows_every, memory.lasts
    first = next(one for one in memory.growth if one.every == every)
    tensors = sum(one.tensors * every / one.every for one in memory.growth)
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


def _of(holder: Holder | None, memory: MemoryReport) -> Iterator[str]:
    """Who keeps it, where that is known, and where it is allocated."""
    if holder is not None:
        graph = " through its autograd graph" if holders.in_graphs(holder) else ""
        yield (
            f"{holders.description(holder)} {'keep' if holder.alike else 'keeps'} "
            f"{binary_size(holder.per_step)} more {_when(holder)}{graph}"
            + (f"; {also}" if (also := _lines([*holder.lines[1:]], "it also grows at")) else "")
        )
        if holder.most >= 0:
            yield holders.full(holder)
        return
    first, *others = memory.growth
    whole = memory.grows_by
    named = [one.line for one in others if one.line and one.bytes >= _PART * whole][:_MOST]
    more = _lines(named, "more at")
    yield f"{binary_size(first.bytes)} of it are allocated at this line{f', {more}' if more else ''}"


def _when(holder: Holder) -> str:
    return "in each step" if holder.every == 1 else each_time(holder.every)


def _lines(lines: Sequence[SourceLine], words: str) -> str:
    return f"{words} {', '.join(line.short for line in lines)}" if lines else ""


def _lows(profile: Profile) -> list[int]:
    """The least that is allocated in each step; nothing where a step has no point of the curve."""
    memory, steps = profile.memory, profile.steps
    if steps.source == "span" or steps.count < 2:
        return []
    found = []
    for start, end in zip(steps.start, steps.end, strict=False):
        low, high = bisect_left(memory.time, start), bisect_right(memory.time, end)
        if low == high:
            return []
        found.append(min(memory.allocated[low:high]))
    return found


_OF_MODELS = ("parameter", "gradient", "optimizer")
"""Kinds of tensors that are there as long as a model or an optimizer is."""
_NO_MODELS = (
    "models of earlier passes stay: release each when it is done (`del model, optimizer`), or keep its "
    "`state_dict()` on the CPU",
    "release each model when it is done, or keep it on the CPU",
)
_LEAST = 4
"""Rises from step to step that show growth."""
_SEEN = 1 << 20
"""Bytes a step from which a curve tells growth from rounding."""
_MOST = 3
"""Other lines that are named."""
_PART = 0.05
"""The part of the growth from which a line is named."""
