"""`calibrated`: a programme with the times of a real profile."""

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
from gapless.model.programme import Calibration, Entry, Measured, Programme, Shape, sheet
from gapless.replay.clock import Clock
from gapless.replay.host import loader_rows
from gapless.replay.waits import waits
from gapless.trace.read import read
from gapless.trace.timeline import HostKind, Timeline, WorkKind

LEAST = 5
"""Operators that a time of the host needs."""
FAR = 20.0
"""The host did something else where the next operator came later than so many times the usual."""
MOST = 4.0
"""Operators that the profile lacks are by their family at most so many times as long or short."""

_ATTENTION = re.compile(r"_(?:scaled_dot_product|flash|efficient|cudnn)_.*attention")
_ENGINE = re.compile(r"^autograd::engine::evaluate_function|^(?!aten::)\w*Backward\d*$")
_SAME = {
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


def canonical(name: str) -> str:
    """One name for what different devices and versions call differently."""
    stem = name.removeprefix("aten::")
    if _ATTENTION.match(stem):
        return "attention_backward" if "backward" in stem else "attention"
    return _SAME.get(stem, stem)


@dataclass
class _Call:
    """One call of an operator in the profile."""

    row: int
    name: str
    backward: bool
    optimizer: bool
    device: int = 0
    kernels: int = 0


def calibrated(path: str, programme: Programme) -> Programme:
    """`programme` with the times of the profile in `path`, and on its GPU where that is known.

    Raises:
        UnreadableInput: it cannot be read, or shows no work of a device.
    """
    measured = calibration(path, programme)
    card = next((one for one in GPUS if one.name == measured.gpu), None)
    gpu = sheet(card) if card is not None else programme.gpu
    return msgspec.structs.replace(programme, calibration=measured, gpu=gpu)


def calibration(path: str, programme: Programme) -> Calibration:
    """What the profile in `path` says of the operators of `programme`.

    Raises:
        UnreadableInput: it cannot be read, or shows no work of a device.
    """
    timeline = read(path)
    wanted = {canonical(one.name) for one in programme.entries if one.kind == "operator"}
    calls = _calls(timeline, lambda name: canonical(name) in wanted)
    device = main_device(timeline)
    gpu = next((one.name for one in timeline.facts.gpus if one.number == device), "")
    forward, backward, optimizer = _host(timeline, calls)
    return Calibration(
        path=path,
        gpu=gpu,
        operators=tuple(_measured(timeline, calls)),
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        call=launch_length(timeline),
        step=_step(timeline, device),
    )


def host_times(timeline: Timeline) -> tuple[int, int, int]:
    """Nanoseconds of the host for an operator in forward, in backward and in an optimizer's step, as
    `Calibration` has them, for a profile of its own."""
    return _host(timeline, _calls(timeline, lambda name: True))


def _calls(timeline: Timeline, wanted: Callable[[str], bool]) -> list[_Call]:
    """The operators that launched work, each as the programme names it: the outermost that is `wanted`."""
    names, host, work = timeline.names, timeline.host, timeline.work
    aten = [name.startswith("aten::") and wanted(name) for name in names]
    engine = [_ENGINE.search(name) is not None for name in names]
    stepping = [name.startswith("Optimizer.step") for name in names]
    found: dict[int, _Call] = {}
    of_call: dict[int, _Call | None] = {}
    for row in np.flatnonzero(timeline.launchers >= 0).tolist():
        if work.kind[row] == WorkKind.MEMCPY and "DtoD" not in names[work.name[row]]:
            continue
        launch = int(timeline.launchers[row])
        if launch not in of_call:
            chain = timeline.with_ancestors(launch)
            known = [one for one in chain if host.kind[one] == HostKind.OPERATOR and aten[host.name[one]]]
            of_call[launch] = None
            if known:
                outer = known[-1]
                of_call[launch] = found.setdefault(
                    outer,
                    _Call(
                        outer,
                        canonical(names[host.name[outer]]),
                        any(engine[host.name[one]] for one in chain),
                        any(stepping[host.name[one]] for one in chain),
                    ),
                )
        call = of_call[launch]
        if call is not None:
            call.device += int(work.end[row] - work.start[row])
            call.kernels += 1
    return [found[row] for row in sorted(found)]


def _measured(timeline: Timeline, calls: Iterable[_Call]) -> Iterable[Measured]:
    """The usual time of each operator and shape, and the mean of each operator over all shapes."""
    groups: defaultdict[tuple[str, tuple[Shape, ...]], list[_Call]] = defaultdict(list)
    for call in calls:
        known = timeline.arguments(call.row).shapes
        groups[call.name, ()].append(call)
        if known:
            groups[call.name, known].append(call)
    for (name, known), members in sorted(groups.items()):
        times = [call.device for call in members]
        yield Measured(
            name=name,
            shapes=known,
            device=round(float(np.median(times) if known else np.mean(times))),
            kernels=float(np.mean([call.kernels for call in members])),
            calls=len(members),
        )


def _host(timeline: Timeline, calls: list[_Call]) -> tuple[int, int, int]:
    """What the host needs from one operator to the next where it does not wait: in forward, in backward and
    in the optimizer; -1 where there are too few."""
    host = timeline.host
    held = np.sort(np.concatenate([waits(timeline).host, waits(timeline).sync]))
    between: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for one, other in pairwise(calls):
        kind = 2 if one.optimizer else int(one.backward)
        same = (one.backward, one.optimizer) == (other.backward, other.optimizer)
        if not same or host.thread[one.row] != host.thread[other.row]:
            continue
        at = int(np.searchsorted(held, one.row))
        if at < len(held) and held[at] < other.row:
            continue
        between[kind].append(int(host.start[other.row] - host.start[one.row]))
    return _usual(between[0]), _usual(between[1]), _usual(between[2])


def _usual(times: list[int]) -> int:
    """The mean of what is not far from the usual."""
    if len(times) < LEAST:
        return -1
    usual = float(np.median(times))
    return round(float(np.mean([time for time in times if time <= FAR * usual])))


def launch_length(timeline: Timeline) -> int:
    """The usual length of a launching call in nanoseconds; -1 where there are too few."""
    host = timeline.host
    named = timeline.names_where(lambda name: "LaunchKernel" in name)
    rows = np.flatnonzero((host.kind == HostKind.CALL) & named[host.name])
    return int(np.median(host.end[rows] - host.start[rows])) if len(rows) >= LEAST else -1


def _step(timeline: Timeline, device: int) -> int:
    """The usual length of the profile's own steps without what they spend in data loaders; -1 where it marks
    none."""
    if device < 0:
        return -1
    found = find_steps(timeline, device)
    if found.source == "span" or not len(found.start):
        return -1
    rows = loader_rows(timeline)
    loading = Clock.without(timeline.host.start[rows], timeline.host.end[rows])
    return int(np.median(loading.between(found.start, found.end)))


_Key = tuple[str, tuple[Shape, ...]]


@dataclass(frozen=True)
class Lookup:
    """The measured time of an entry: of its own shapes, else of its operator's, in proportion, else of its
    family's.

    `factors` are measured times in parts of the data sheet's, by operator; `families` by family.
    """

    exact: Mapping[_Key, Measured]
    by_name: Mapping[str, Measured]
    factors: Mapping[str, float]
    families: Mapping[str, float]

    def shaped(self, entry: Entry) -> Measured | None:
        """What was measured of this operator with these shapes."""
        return self.exact.get(_key(entry.name, entry.inputs)) if entry.inputs else None

    def named(self, entry: Entry) -> Measured | None:
        """What was measured of this operator with any shapes."""
        return self.by_name.get(canonical(entry.name))

    def factor(self, entry: Entry) -> float:
        own = self.factors.get(canonical(entry.name))
        if own is not None:
            return own
        return self.families.get(family_of(entry.name), 1.0)


def _key(name: str, shapes: tuple[Shape, ...]) -> _Key:
    """Versions differ in the order of arguments: the shapes are compared without it."""
    return canonical(name), tuple(sorted(shapes))


def lookup(measured: Calibration, programme: Programme, guess: Callable[[Entry], float]) -> Lookup:
    """`guess` gives the time of an entry by the data sheet."""
    exact = {_key(one.name, one.shapes): one for one in measured.operators if one.shapes}
    by_name = {one.name: one for one in measured.operators if not one.shapes}
    known = Lookup(exact, by_name, {}, {})
    shaped: defaultdict[str, list[float]] = defaultdict(list)
    plain: defaultdict[str, list[float]] = defaultdict(list)
    families: dict[str, str] = {}
    counts = _counts(programme)
    for position, entry in enumerate(programme.entries):
        if entry.kind != "operator" or position not in counts:
            continue
        name, guessed = canonical(entry.name), guess(entry)
        families[name] = family_of(entry.name)
        found = known.shaped(entry)
        if found is not None:
            shaped[name].append(found.device / max(guessed, 1.0))
        plain[name] += [guessed] * counts[position]
    factors = {
        name: by_name[name].device / max(float(np.mean(guesses)), 1.0)
        for name, guesses in plain.items()
        if name in by_name
    }
    factors |= {name: float(np.median(found)) for name, found in shaped.items()}
    return Lookup(exact, by_name, factors, _by_family(factors, plain, families))


def _by_family(
    factors: Mapping[str, float], guessed: Mapping[str, list[float]], families: Mapping[str, str]
) -> dict[str, float]:
    """The factors of families: their operators', by the time that each takes."""
    measured: defaultdict[str, float] = defaultdict(float)
    without: defaultdict[str, float] = defaultdict(float)
    for name, factor in factors.items():
        time = sum(guessed[name])
        measured[families[name]] += factor * time
        without[families[name]] += time
    found = {family: measured[family] / time for family, time in without.items() if time}
    return {family: min(max(factor, 1 / MOST), MOST) for family, factor in found.items()}


def _counts(programme: Programme) -> dict[int, int]:
    """How often each entry is asked for in the last segments."""
    counts: dict[int, int] = {}
    for segment in programme.segments[-12:]:
        for position in programme.bodies[segment.body]:
            counts[position] = counts.get(position, 0) + 1
    return counts
