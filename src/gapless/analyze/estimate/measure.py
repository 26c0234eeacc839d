"""Calibrate a programme with the times of a real profile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from gapless.analyze.kernel_times.families import family_of
from gapless.analyze.profile.trace_steps import find_steps, main_device
from gapless.model.gpus import GPUS
from gapless.model.programme import Calibration, Entry, Measured, Programme, Shape, gpu_limits
from gapless.replay.clock import HostClock
from gapless.replay.host import loader_rows
from gapless.replay.waits import find_waits
from gapless.trace.timeline import HostKind, Timeline, WorkKind

MIN_OPERATORS = 5
"""Operators needed for a mean time of the host."""
MAX_TIMES_USUAL = 20.0
"""Intervals longer than this many times the median are left out: the host did something else."""
MAX_FAMILY_FACTOR = 4.0
"""Limit of the factor that a family's measured operators give to its unmeasured ones, up or down."""

_ATTENTION = re.compile(r"_(?:scaled_dot_product|flash|efficient|cudnn)_.*attention")
_ENGINE = re.compile(r"^autograd::engine::evaluate_function|^(?!aten::)\w*Backward\d*$")
_CANONICAL_NAMES = {
    "cudnn_batch_norm": "batch_norm", "native_batch_norm": "batch_norm", "miopen_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm", "_batch_norm_with_update": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_batch_norm_impl_index": "batch_norm",
    "cudnn_batch_norm_backward": "batch_norm_backward", "native_batch_norm_backward": "batch_norm_backward",
    "miopen_batch_norm_backward": "batch_norm_backward",
    "_batch_norm_impl_index_backward": "batch_norm_backward",
    "cudnn_convolution_backward": "convolution_backward", "cudnn_convolution": "convolution",
    "miopen_convolution": "convolution", "_convolution": "convolution",
    "_index_put_impl_": "index_put", "index_put_": "index_put",
}  # fmt: skip


def canonical_name(name: str) -> str:
    """Return one name for an operator that devices and versions name differently."""
    stem = name.removeprefix("aten::")
    if _ATTENTION.match(stem):
        return "attention_backward" if "backward" in stem else "attention"
    return _CANONICAL_NAMES.get(stem, stem)


@dataclass
class _OperatorCall:
    """A call of an operator in the profile, with the time and number of its kernels."""

    row: int
    name: str
    backward: bool
    optimizer: bool
    device: int = 0
    kernels: int = 0


def calibrate(path: str, programme: Programme) -> Programme:
    """Return `programme` with the times of the profile in `path`, and on its GPU if that is known.

    Raises:
        UnreadableInput: the file cannot be read, or shows no device work.
    """
    measured = read_calibration(path, programme)
    card = next((gpu for gpu in GPUS if gpu.name == measured.gpu), None)
    gpu = gpu_limits(card) if card is not None else programme.gpu
    return msgspec.structs.replace(programme, calibration=measured, gpu=gpu)


def read_calibration(path: str, programme: Programme) -> Calibration:
    """Read the times of the operators of `programme` from the profile in `path`.

    Raises:
        UnreadableInput: the file cannot be read, or shows no device work.
    """
    from gapless.trace.read import read  # only a calibrated estimate reads a profile

    timeline = read(path)
    wanted = {canonical_name(entry.name) for entry in programme.entries if entry.kind == "operator"}
    calls = _operator_calls(timeline, lambda name: canonical_name(name) in wanted)
    device = main_device(timeline)
    gpu = next((gpu.name for gpu in timeline.facts.gpus if gpu.number == device), "")
    forward, backward, optimizer = _host_intervals(timeline, calls)
    return Calibration(
        path=path,
        gpu=gpu,
        operators=tuple(_summarize_calls(timeline, calls)),
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        call=launch_length(timeline),
        step=_step_length(timeline, device),
    )


def host_times(timeline: Timeline) -> tuple[int, int, int]:
    """Nanoseconds of the host per operator in forward, in backward and in an optimizer's step, as in a
    `Calibration`, of a profile itself."""
    return _host_intervals(timeline, _operator_calls(timeline, lambda name: True))


def _operator_calls(timeline: Timeline, wanted: Callable[[str], bool]) -> list[_OperatorCall]:
    """Return the operators that launched work, each as the outermost one whose name is `wanted`."""
    names, host, work = timeline.names, timeline.host, timeline.work
    aten = [name.startswith("aten::") and wanted(name) for name in names]
    engine = [_ENGINE.search(name) is not None for name in names]
    stepping = [name.startswith("Optimizer.step") for name in names]
    calls: dict[int, _OperatorCall] = {}
    of_call: dict[int, _OperatorCall | None] = {}
    for row in np.flatnonzero(timeline.launchers >= 0).tolist():
        if work.kind[row] == WorkKind.MEMCPY and "DtoD" not in names[work.name[row]]:
            continue
        launch = int(timeline.launchers[row])
        if launch not in of_call:
            chain = timeline.with_ancestors(launch)
            operators = [
                row_ for row_ in chain if host.kind[row_] == HostKind.OPERATOR and aten[host.name[row_]]
            ]
            of_call[launch] = None
            if operators:
                outer = operators[-1]
                of_call[launch] = calls.setdefault(
                    outer,
                    _OperatorCall(
                        outer,
                        canonical_name(names[host.name[outer]]),
                        any(engine[host.name[row_]] for row_ in chain),
                        any(stepping[host.name[row_]] for row_ in chain),
                    ),
                )
        call = of_call[launch]
        if call is not None:
            call.device += int(work.end[row] - work.start[row])
            call.kernels += 1
    return [calls[row] for row in sorted(calls)]


def _summarize_calls(timeline: Timeline, calls: Iterable[_OperatorCall]) -> Iterable[Measured]:
    """Yield the median time of each operator and shape, and the mean of each operator over all shapes."""
    groups: defaultdict[tuple[str, tuple[Shape, ...]], list[_OperatorCall]] = defaultdict(list)
    for call in calls:
        shapes = timeline.arguments(call.row).shapes
        groups[call.name, ()].append(call)
        if shapes:
            groups[call.name, shapes].append(call)
    for (name, shapes), members in sorted(groups.items()):
        times = [call.device for call in members]
        yield Measured(
            name=name,
            shapes=shapes,
            device=round(float(np.median(times) if shapes else np.mean(times))),
            kernels=float(np.mean([call.kernels for call in members])),
            calls=len(members),
        )


def _host_intervals(timeline: Timeline, calls: list[_OperatorCall]) -> tuple[int, int, int]:
    """Return the host's mean time from one operator to the next without waits: in forward, in backward and in
    the optimizer; -1 if there are too few."""
    host = timeline.host
    waiting = np.sort(np.concatenate([find_waits(timeline).host, find_waits(timeline).sync]))
    between: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for call, following in pairwise(calls):
        kind = 2 if call.optimizer else int(call.backward)
        same = (call.backward, call.optimizer) == (following.backward, following.optimizer)
        if not same or host.thread[call.row] != host.thread[following.row]:
            continue
        at = int(np.searchsorted(waiting, call.row))
        if at < len(waiting) and waiting[at] < following.row:
            continue
        between[kind].append(int(host.start[following.row] - host.start[call.row]))
    return (
        _mean_without_outliers(between[0]),
        _mean_without_outliers(between[1]),
        _mean_without_outliers(between[2]),
    )


def _mean_without_outliers(times: list[int]) -> int:
    """Return the mean of the times that are not far above the median."""
    if len(times) < MIN_OPERATORS:
        return -1
    usual = float(np.median(times))
    return round(float(np.mean([time for time in times if time <= MAX_TIMES_USUAL * usual])))


def launch_length(timeline: Timeline) -> int:
    """Return the median length of a launching call in nanoseconds; -1 if there are too few."""
    host = timeline.host
    is_launch = timeline.names_where(lambda name: "LaunchKernel" in name)
    rows = np.flatnonzero((host.kind == HostKind.CALL) & is_launch[host.name])
    return int(np.median(host.end[rows] - host.start[rows])) if len(rows) >= MIN_OPERATORS else -1


def _step_length(timeline: Timeline, device: int) -> int:
    """Return the median length of the profile's own steps without time in data loaders; -1 without marked
    steps."""
    if device < 0:
        return -1
    steps = find_steps(timeline, device)
    if steps.source == "span" or not len(steps.start):
        return -1
    rows = loader_rows(timeline)
    loading = HostClock.without(timeline.host.start[rows], timeline.host.end[rows])
    return int(np.median(loading.between(steps.start, steps.end)))


_Key = tuple[str, tuple[Shape, ...]]


@dataclass(frozen=True)
class MeasuredTimes:
    """The measured time of an entry: for its shapes, else scaled from its operator's, else from its
    family's.

    `factors` are measured times over the data sheet's, by operator; `families` by family.
    """

    exact: Mapping[_Key, Measured]
    by_name: Mapping[str, Measured]
    factors: Mapping[str, float]
    families: Mapping[str, float]

    def of_shapes(self, entry: Entry) -> Measured | None:
        """Return the measurement of this operator with these shapes."""
        return self.exact.get(_key(entry.name, entry.inputs)) if entry.inputs else None

    def of_operator(self, entry: Entry) -> Measured | None:
        """Return the measurement of this operator over all shapes."""
        return self.by_name.get(canonical_name(entry.name))

    def factor(self, entry: Entry) -> float:
        own = self.factors.get(canonical_name(entry.name))
        if own is not None:
            return own
        return self.families.get(family_of(entry.name), 1.0)


def _key(name: str, shapes: tuple[Shape, ...]) -> _Key:
    """Return a key without the order of arguments, in which versions differ."""
    return canonical_name(name), tuple(sorted(shapes))


def index_measurements(
    measured: Calibration, programme: Programme, guess: Callable[[Entry], float]
) -> MeasuredTimes:
    """Index a calibration for a programme; `guess` returns an entry's time by the data sheet."""
    exact = {
        _key(measured_.name, measured_.shapes): measured_
        for measured_ in measured.operators
        if measured_.shapes
    }
    by_name = {measured_.name: measured_ for measured_ in measured.operators if not measured_.shapes}
    index = MeasuredTimes(exact, by_name, {}, {})
    shaped: defaultdict[str, list[float]] = defaultdict(list)
    plain: defaultdict[str, list[float]] = defaultdict(list)
    families: dict[str, str] = {}
    counts = _count_uses(programme)
    for position, entry in enumerate(programme.entries):
        if entry.kind != "operator" or position not in counts:
            continue
        name, guessed = canonical_name(entry.name), guess(entry)
        families[name] = family_of(entry.name)
        measurement = index.of_shapes(entry)
        if measurement is not None:
            shaped[name].append(measurement.device / max(guessed, 1.0))
        plain[name] += [guessed] * counts[position]
    factors = {
        name: by_name[name].device / max(float(np.mean(guesses)), 1.0)
        for name, guesses in plain.items()
        if name in by_name
    }
    factors |= {name: float(np.median(ratios)) for name, ratios in shaped.items()}
    return MeasuredTimes(exact, by_name, factors, _family_factors(factors, plain, families))


def _family_factors(
    factors: Mapping[str, float], guessed: Mapping[str, list[float]], families: Mapping[str, str]
) -> dict[str, float]:
    """Return how many times as long as guessed each family takes, within `MAX_FAMILY_FACTOR` either way.

    It is the mean of its operators' `factors`, weighted by the time `guessed` for all their calls.
    """
    measured: defaultdict[str, float] = defaultdict(float)
    without: defaultdict[str, float] = defaultdict(float)
    for name, factor in factors.items():
        time = sum(guessed[name])
        measured[families[name]] += factor * time
        without[families[name]] += time
    family_factors = {family: measured[family] / time for family, time in without.items() if time}
    return {
        family: min(max(factor, 1 / MAX_FAMILY_FACTOR), MAX_FAMILY_FACTOR)
        for family, factor in family_factors.items()
    }


def _count_uses(programme: Programme) -> dict[int, int]:
    """Count how often each entry is used in the last segments."""
    counts: dict[int, int] = {}
    for segment in programme.segments[-12:]:
        for position in programme.bodies[segment.body]:
            counts[position] = counts.get(position, 0) + 1
    return counts
