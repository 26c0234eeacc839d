"""What a step does: how many samples and tokens, how much arithmetic, in which phase the GPU's time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gapless.analyze.estimate.programme_steps import Arrived, Step
from gapless.analyze.estimate.timing import Times
from gapless.analyze.kernel_times.durations import peak
from gapless.analyze.kernel_times.families import ATTENTION, CONVOLUTION, MATMUL, family_of
from gapless.analyze.kernel_times.operator_work import products, work
from gapless.model.estimate import Count, Throughput
from gapless.model.programme import Entry, Shape

_IMAGES = 4
"""Dimensions of what a convolution over images is given."""
_VOCABULARY = 1000
"""Rows from which on the embedding of a model that sees images is one of words, and none of positions."""
_FEWEST_WORDS = 32
"""Rows of the embedding of characters; of less it is one of classes."""
_FAMILIES = (MATMUL, CONVOLUTION, ATTENTION)


def throughput(steps: Sequence[Step], arrived: Sequence[Arrived], times: Times) -> Throughput:
    """What one of `steps` does in the mean; `arrived` is what came from the host in recorded steps."""
    needed, again, units = _flops(steps)
    unit = max(units, key=lambda one: units[one], default="")
    samples, tokens = _samples(steps, arrived), _tokens(steps)
    if tokens is None:
        tokens = _tokens_in_a_row(steps)
        if tokens is not None and samples is not None:
            group = _largest(arrived)  # of rows, where they end in one is not known
            rows = group[1] == 1 if group is not None else samples.number == tokens.number
            samples = None if rows else samples
    return Throughput(
        samples=samples,
        tokens=tokens,
        flops=needed / len(steps),
        repeated=again / len(steps),
        unit="fp32" if unit == "tf32" and not times.gpu.tf32 else unit,
        peak=_peak(times, unit),
        phases={name: round(time / len(steps)) for name, time in _phases(steps, times).items()},
    )


def _peak(times: Times, unit: str) -> float:
    """TFLOP/s of the GPU that the times are of; 0 where nothing tells them."""
    measured = times.calibration
    if not unit or (measured is not None and measured.gpu not in ("", times.gpu.name)):
        return 0.0  # a profile of a GPU whose data sheet is not known
    return peak(times.gpu, unit)


# Arithmetic ---------------------------------------------------------------------------------------


def _flops(steps: Sequence[Step]) -> tuple[float, float, Mapping[str, float]]:
    """Flops of products, convolutions and attention: those that the model needs, those of passes that are
    computed again, and the former by the unit that they run on."""
    needed = again = 0.0
    units: dict[str, float] = {}
    for step in steps:
        forward = _forward(step)
        for entry in step:
            if entry.kind != "operator" or family_of(entry.name) not in _FAMILIES:
                continue
            flops = products(entry)
            if repeats(entry, forward):
                again += flops
            else:
                needed += flops
                unit = work(entry).unit
                units[unit] = units.get(unit, 0.0) + flops
    return needed, again, units


def _forward(step: Step) -> set[tuple[str, tuple[Shape, ...]]]:
    return {(entry.name, entry.inputs) for entry in step if entry.kind == "operator" and not entry.backward}


def repeats(entry: Entry, forward: set[tuple[str, tuple[Shape, ...]]]) -> bool:
    """Whether `entry` computes in backward again what the forward pass had: checkpointing does."""
    return entry.regraded and (entry.name, entry.inputs) in forward


def _phases(steps: Sequence[Step], times: Times) -> dict[str, int]:
    """Nanoseconds of the GPU by phase."""
    found: Counter[str] = Counter()
    for step in steps:
        forward = _forward(step)
        for entry in step:
            if entry.kind == "operator":
                found[_phase(entry, forward)] += times.timed(entry).device
    order = ("forward", "recomputation", "backward", "optimizer")
    return {name: found[name] for name in order if found[name]}


def _phase(entry: Entry, forward: set[tuple[str, tuple[Shape, ...]]]) -> str:
    if entry.optimizer:
        return "optimizer"
    if entry.backward:
        return "recomputation" if repeats(entry, forward) else "backward"
    return "forward"


# Samples and tokens -------------------------------------------------------------------------------


def _samples(steps: Sequence[Step], arrived: Sequence[Arrived]) -> Count | None:
    """Samples by the leading dimension of what comes from the host, else of what the first operator on a
    batch is given; None where neither tells."""
    passes = sum(_passes(step) for step in steps) / len(steps)
    group = _largest(arrived)
    if group:
        shapes = [shape for found in arrived for dtype, shape in found if (dtype, len(shape)) == group]
        each = len(shapes) / len(arrived)
        mean = sum(shape[0] for shape in shapes) / len(shapes)
        batches = min(each, max(passes, 1.0))
        return Count(number=mean * batches, told=f"batches of {_shape(shapes[-1])} from the CPU")
    first = [_first_batch(step) for step in steps]
    known = [one for one in first if one is not None]
    if not known:
        return None
    mean = sum(shape[0] for _, shape in known) / len(known)
    name, shape = known[-1]
    return Count(number=mean * max(passes, 1.0), told=f"what {name} is given: {_shape(shape)}")


def _passes(step: Step) -> int:
    """How often a backward pass begins: with gradients accumulated, once for each small batch."""
    begun, before = 0, False
    for entry in step:
        if entry.kind == "operator" and not entry.optimizer:
            begun += entry.backward and not before
            before = entry.backward
    return begun


def _largest(arrived: Sequence[Arrived]) -> tuple[str, int] | None:
    """The type and number of dimensions of the largest tensors that come from the host in each step."""
    held: Counter[tuple[str, int]] = Counter()
    for found in arrived:
        for dtype, shape in found:
            held[dtype, len(shape)] += _numel(shape)
    often = {
        key: size
        for key, size in held.items()
        if all(any((dtype, len(shape)) == key for dtype, shape in found) for found in arrived)
    }
    return max(often, key=lambda key: often[key]) if often else None


def _first_batch(step: Step) -> tuple[str, Shape] | None:
    """The first operator of the forward pass whose input has a batch: its name and the input's shape."""
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


def _tokens(steps: Sequence[Step]) -> Count | None:
    """Tokens by the indices of the embedding that is asked for most; None where none is over sequences."""
    images = _sees_images(steps)
    looked: Counter[Shape] = Counter()
    last: dict[Shape, Shape] = {}
    for step in steps:
        for entry in step:
            if entry.name == "aten::embedding" and not entry.backward and len(entry.inputs) > 1:
                table, indices = entry.inputs[:2]
                words = not images or table[0] >= _VOCABULARY
                if len(indices) == 2 and indices[1] > 1 and words:
                    looked[table] += _numel(indices)
                    last[table] = indices
    if not looked:
        return None
    table = max(looked, key=lambda one: (looked[one], one))
    told = f"the embedding of {_shape(table)} is asked for {_shape(last[table])}"
    return Count(number=looked[table] / len(steps), told=told)


def _sees_images(steps: Sequence[Step]) -> bool:
    return any(
        family_of(entry.name) == CONVOLUTION and len(entry.inputs[0]) == _IMAGES
        for step in steps
        for entry in step
        if entry.kind == "operator" and entry.inputs
    )


def _tokens_in_a_row(steps: Sequence[Step]) -> Count | None:
    """Tokens that are given one after the other, without a dimension for samples, by the indices of an
    embedding; None where none is of words.

    It is of words where as many scores as it has rows are computed for each of them: what comes next.
    """
    if _sees_images(steps):
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
    words = [one for one in looked if one[0] >= _FEWEST_WORDS and (_numel(last[one]), one[0]) in scores]
    if not words:
        return None
    table = max(words, key=lambda one: (looked[one], one))
    told = f"the embedding of {_shape(table)} is asked for {_shape(last[table])} in a row"
    return Count(number=looked[table] / len(steps), told=told)


def _numel(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))
