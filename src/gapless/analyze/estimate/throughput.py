"""Count what a step processes: samples, tokens, flops, and the GPU's time by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gapless.analyze.estimate.programme_steps import ArrivedTensors, Step
from gapless.analyze.estimate.timing import Times
from gapless.analyze.kernel_times.durations import peak
from gapless.analyze.kernel_times.families import (
    ATTENTION,
    CONVOLUTION,
    MATMUL,
    RECURRENT,
    TRITON,
    UNKNOWN,
    family_of,
)
from gapless.analyze.kernel_times.operator_work import nominal_flops, work
from gapless.model.estimate import Count, StepThroughput
from gapless.model.programme import Entry, Shape

_IMAGE_DIMENSIONS = 4
"""Dimensions of a batch of images: samples, channels, height, width."""
_MIN_VOCABULARY = 1000
"""Rows from which on an embedding in a model with images is one of words, not of positions."""
_MIN_CHARACTERS = 32
"""Rows from which on an embedding is one of characters, not of classes."""
_FAMILIES = (MATMUL, CONVOLUTION, ATTENTION)
_ALONG = (ATTENTION, CONVOLUTION, TRITON, UNKNOWN, "scan")
"""Families of operators that look along a sequence, or may do so."""


def measure_throughput(
    steps: Sequence[Step], arrived: Sequence[ArrivedTensors], times: Times
) -> StepThroughput:
    """Return what a step processes on average; `arrived` are the tensors from the host in recorded steps."""
    flops, repeated, units = _count_flops(steps)
    unit = max(units, key=lambda name: units[name], default="")
    samples, tokens = _count_samples(steps, arrived), _count_tokens(steps)
    if tokens is None:
        tokens = _count_flat_tokens(steps)
        if tokens is not None and samples is not None:
            group = _largest_kind(arrived)  # of rows whose ends are unknown
            rows = group[1] == 1 if group is not None else samples.number == tokens.number
            samples = None if rows else samples
    return StepThroughput(
        samples=samples,
        tokens=tokens,
        flops=flops / len(steps),
        repeated=repeated / len(steps),
        unit="fp32" if unit == "tf32" and not times.gpu.tf32 else unit,
        peak=_peak(times, unit),
        phases={name: round(time / len(steps)) for name, time in _time_by_phase(steps, times).items()},
    )


def _peak(times: Times, unit: str) -> float:
    """TFLOP/s of the GPU that the times are for; 0 if it is unknown."""
    measured = times.calibration
    if not unit or (measured is not None and measured.gpu not in ("", times.gpu.name)):
        return 0.0  # a profile of a GPU without a known data sheet
    return peak(times.gpu, unit)


# Arithmetic ---------------------------------------------------------------------------------------


def _count_flops(steps: Sequence[Step]) -> tuple[float, float, Mapping[str, float]]:
    """Count flops of products, convolutions and attention: those the model needs, those of recomputed forward
    passes, and the former by arithmetic unit."""
    needed = repeated = 0.0
    units: dict[str, float] = {}
    for step in steps:
        forward = _forward(step)
        for entry in step:
            if entry.kind != "operator" or family_of(entry.name) not in _FAMILIES:
                continue
            flops = nominal_flops(entry)
            if repeats(entry, forward):
                repeated += flops
            else:
                needed += flops
                unit = work(entry).unit
                units[unit] = units.get(unit, 0.0) + flops
    return needed, repeated, units


def _forward(step: Step) -> set[tuple[str, tuple[Shape, ...]]]:
    return {(entry.name, entry.inputs) for entry in step if entry.kind == "operator" and not entry.backward}


def repeats(entry: Entry, forward: set[tuple[str, tuple[Shape, ...]]]) -> bool:
    """Whether `entry` repeats an operator of the forward pass in backward, as checkpointing does."""
    return entry.regraded and (entry.name, entry.inputs) in forward


def _time_by_phase(steps: Sequence[Step], times: Times) -> dict[str, int]:
    """Return nanoseconds of the GPU by phase."""
    times_: Counter[str] = Counter()
    for step in steps:
        forward = _forward(step)
        for entry in step:
            if entry.kind == "operator":
                times_[_phase(entry, forward)] += times.add_times(entry).device
    order = ("forward", "recomputation", "backward", "optimizer")
    return {name: times_[name] for name in order if times_[name]}


def _phase(entry: Entry, forward: set[tuple[str, tuple[Shape, ...]]]) -> str:
    if entry.optimizer:
        return "optimizer"
    if entry.backward:
        return "recomputation" if repeats(entry, forward) else "backward"
    return "forward"


# Samples and tokens -------------------------------------------------------------------------------


def _count_samples(steps: Sequence[Step], arrived: Sequence[ArrivedTensors]) -> Count | None:
    """Count samples by the leading dimension of the batches from the host, else by the first input of the
    forward pass; None if neither shows it."""
    passes = sum(_count_passes(step) for step in steps) / len(steps)
    group = _largest_kind(arrived)
    if group:
        shapes = [shape for tensors in arrived for dtype, shape in tensors if (dtype, len(shape)) == group]
        per_step = len(shapes) / len(arrived)
        mean = sum(shape[0] for shape in shapes) / len(shapes)
        batches = min(per_step, max(passes, 1.0))
        return Count(number=mean * batches, told=f"batches of {_shape(shapes[-1])} from the CPU")
    first = [_first_batch(step) for step in steps]
    batches_ = [batch for batch in first if batch is not None]
    if not batches_:
        return None
    mean = sum(shape[0] for _, shape in batches_) / len(batches_)
    name, shape = batches_[-1]
    return Count(number=mean * max(passes, 1.0), told=f"what {name} is given: {_shape(shape)}")


def _count_passes(step: Step) -> int:
    """Count how often a backward pass begins: with accumulated gradients once per small batch."""
    count, before = 0, False
    for entry in step:
        if entry.kind == "operator" and not entry.optimizer:
            count += entry.backward and not before
            before = entry.backward
    return count


def _largest_kind(arrived: Sequence[ArrivedTensors]) -> tuple[str, int] | None:
    """Return the type and number of dimensions of the largest tensors that arrive in every step."""
    elements: Counter[tuple[str, int]] = Counter()
    for tensors in arrived:
        for dtype, shape in tensors:
            elements[dtype, len(shape)] += _numel(shape)
    often = {
        key: size
        for key, size in elements.items()
        if all(any((dtype, len(shape)) == key for dtype, shape in tensors) for tensors in arrived)
    }
    return max(often, key=lambda key: often[key]) if often else None


def _first_batch(step: Step) -> tuple[str, Shape] | None:
    """Return the name and input shape of the first forward operator whose input has a batch."""
    for entry in step:
        if entry.kind != "operator" or entry.backward or not entry.inputs:
            continue
        name = entry.name.removeprefix("aten::")
        if name == "embedding" and len(entry.inputs) > 1 and len(entry.inputs[1]) >= 2:
            return name, entry.inputs[1]
        if family_of(entry.name) == CONVOLUTION and len(entry.inputs[0]) >= 3:
            return name, entry.inputs[0]
        if name == "addmm" and len(entry.inputs) > 1:
            return name, entry.inputs[1]
        if name in ("mm", "linear") and len(entry.inputs[0]) == 2:
            return name, entry.inputs[0]
    return None


def _count_tokens(steps: Sequence[Step]) -> Count | None:
    """Count tokens by the indices of the most used embedding; None if none is over sequences."""
    images = _sees_images(steps)
    looked: Counter[Shape] = Counter()
    last: dict[Shape, Shape] = {}
    for step in steps:
        for entry in step:
            if entry.name == "aten::embedding" and not entry.backward and len(entry.inputs) > 1:
                table, indices = entry.inputs[:2]
                words = not images or table[0] >= _MIN_VOCABULARY
                if len(indices) == 2 and indices[1] > 1 and words:
                    looked[table] += _numel(indices)
                    last[table] = indices
    if not looked:
        return None
    table = max(looked, key=lambda shape: (looked[shape], shape))
    text = f"the embedding of {_shape(table)} is asked for {_shape(last[table])}"
    return Count(number=looked[table] / len(steps), told=text)


def _sees_images(steps: Sequence[Step]) -> bool:
    return any(
        family_of(entry.name) == CONVOLUTION and len(entry.inputs[0]) == _IMAGE_DIMENSIONS
        for step in steps
        for entry in step
        if entry.kind == "operator" and entry.inputs
    )


def _count_flat_tokens(steps: Sequence[Step]) -> Count | None:
    """Count tokens given as one sequence without a dimension for samples, by the indices of an embedding;
    None if none is of words.

    It is of words if as many scores as it has rows are computed for each index, the next token's, and if
    something looks at other tokens: what is scored row by row are items of a shop, each of another customer.
    """
    if _sees_images(steps) or not any(_looks_along(entry) for step in steps for entry in step):
        return None
    looked: Counter[Shape] = Counter()
    last: dict[Shape, Shape] = {}
    scores: set[Shape] = set()
    for step in steps:
        for entry in step:
            if entry.kind != "operator" or entry.backward:
                continue
            if family_of(entry.name) == MATMUL:
                scores.update((_numel(shape[:-1]), shape[-1]) for shape in entry.outputs if len(shape) >= 2)
            if entry.name == "aten::embedding" and len(entry.inputs) > 1 and len(entry.inputs[1]) == 1:
                table, indices = entry.inputs[:2]
                looked[table] += _numel(indices)
                last[table] = indices
    words = [
        shape for shape in looked if shape[0] >= _MIN_CHARACTERS and (_numel(last[shape]), shape[0]) in scores
    ]
    if not words:
        return None
    table = max(words, key=lambda shape: (looked[shape], shape))
    text = f"the embedding of {_shape(table)} is asked for {_shape(last[table])} in a row"
    return Count(number=looked[table] / len(steps), told=text)


def _looks_along(entry: Entry) -> bool:
    """Whether an operator may compute a row of its output from several rows of its input."""
    if entry.kind != "operator" or entry.backward or entry.optimizer:
        return False
    family = family_of(entry.name)
    if family == RECURRENT:
        data, states = entry.inputs[:1], entry.outputs[1:2]
        rows = _numel(states[0][1:2]) if states else 0
        return not data or _numel(data[0][:-1]) > rows
    if family == MATMUL:  # each by each
        return any(len(shape) > 1 and shape[-1] == shape[-2] > 1 for shape in entry.outputs)
    return family in _ALONG


def _numel(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))
