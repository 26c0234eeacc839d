"""Collectives between ranks, from their communication kernels."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gapless.analyze.profile.trace_steps import is_communication
from gapless.model.profile import Collectives
from gapless.trace.timeline import Ints, Timeline, distinct

MAX_KERNELS_KEPT = 512
"""Kernels kept per process group and name, the first ones: a summary has to stay small."""

UNNAMED_COLLECTIVE = "collective"
"""Name for a communication kernel whose name does not show what it does (``ncclDevKernel_Generic``)."""

_KINDS = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        # The order matters: a barrier is an all-reduce, "reduce" is part of many other names.
        ("barrier", r"barrier"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_reduce", r"all_?reduce|cross_?device_?reduce|quick_?reduce|one_?shot|two_?shot"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all|all2all|deep_ep\W+\w+\W+(?:dispatch|combine)"),
        ("broadcast", r"broadcast"),
        ("send_recv", r"send_?recv|(?<![a-z])(?:send|i?recv)(?![a-z])"),
        ("reduce", r"(?<![a-z])reduce(?![a-z])"),
        ("scatter", r"(?<![a-z])scatter(?![a-z])"),
        ("gather", r"(?<![a-z])gather(?![a-z])"),
    )
)
_LAUNCHING_SPAN = re.compile(r"(?:nccl|rccl|xccl|hccl|ucc|gloo|mpi):|_?c10d(?:_functional)?::")
"""Matches host spans whose name shows which collective is being launched."""

_VAGUE_NAMES = ("send_recv", UNNAMED_COLLECTIVE)
"""Names that all-to-all kernels have too, or any kernel in builds with a single one."""

_MAX_SPANS_SEARCHED = 24
"""Number of spans around the launching call that are searched for the collective's own span."""


def normalize_collective(name: str) -> str:
    """Return the collective of a kernel, operator or annotation by its name, "" if that does not show it.

    One of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``,
    ``gather``, ``scatter``, ``send_recv`` and ``barrier``.
    """
    plain = name.replace("ReduceScatter", "reduce_scatter").replace("_allgather_base", "all_gather")
    plain = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", plain)  # AllReduce, SendRecv
    for kind, pattern in _KINDS:
        if pattern.search(plain):
            return kind
    return ""


def find_collectives(timeline: Timeline, device: int) -> tuple[Collectives, ...]:
    """Return the communication kernels of `device` by process group and name, the first `MAX_KERNELS_KEPT`.

    The name comes from the kernel, or from the span that launched it if the kernel's is vague: NCCL runs an
    all-to-all as sends and receives. Kernels launched before the recording take name and group from kernels
    of the same name on their stream, if those agree. Without recorded groups, the stream stands for the group
    if one name runs on several streams.
    """
    rows = np.flatnonzero(is_communication(timeline) & (timeline.work.device == device))
    if not len(rows):
        return ()
    names = _collective_names(timeline, rows)
    groups = _process_groups(timeline, rows, names)
    work = timeline.work
    kernels = []
    for name, group in sorted(set(zip(names.tolist(), groups.tolist(), strict=True))):
        members = rows[(names == name) & (groups == group)][:MAX_KERNELS_KEPT]
        kernels.append(
            Collectives(
                name=name,
                group=group,
                start=tuple(work.start[members].tolist()),
                length=tuple((work.end[members] - work.start[members]).tolist()),
                elements=tuple(work.elements[members].tolist()),
            )
        )
    return tuple(kernels)


def _collective_names(timeline: Timeline, rows: Ints) -> NDArray[np.str_]:
    """Return the collective of each row of `work`."""
    numbers, which = np.unique(timeline.work.name[rows], return_inverse=True)
    own = np.array(
        [normalize_collective(timeline.names[number]) or UNNAMED_COLLECTIVE for number in numbers.tolist()]
    )[which]
    from_launch = _names_of_launches(timeline, rows)
    vague = np.isin(own, _VAGUE_NAMES)
    names = np.where((vague & (from_launch != "")) | (from_launch == "barrier"), from_launch, own)
    unknown = vague & (from_launch == "")
    if unknown.any() and not unknown.all():
        key = timeline.work.name[rows].astype(np.int64) * 2**32 + timeline.work.stream[rows] % 2**32
        names = _fill_unknown(names, unknown, key)
    return names


def _names_of_launches(timeline: Timeline, rows: Ints) -> NDArray[np.str_]:
    """Return the collective named by the host spans around the launch of each row, "" where none is."""
    host, parents = timeline.host, timeline.parents
    at = timeline.launchers[rows]
    names = np.full(len(rows), "", dtype="<U16")
    wanted = _per_name(
        timeline, lambda name: normalize_collective(name) if _LAUNCHING_SPAN.match(name) else ""
    )
    barrier = _per_name(timeline, lambda name: "barrier" if name == "c10d::barrier" else "")
    for _ in range(_MAX_SPANS_SEARCHED):
        has_span = at >= 0
        if not has_span.any():
            break
        name = np.where(has_span, host.name[at], 0)
        fresh = has_span & (names == "")
        names[fresh] = wanted[name[fresh]]
        names[has_span & (barrier[name] != "")] = "barrier"
        at = np.where(has_span, parents[at], -1)
    return names


def _per_name(timeline: Timeline, text_of: Callable[[str], str]) -> NDArray[np.str_]:
    return np.array([text_of(name) for name in timeline.names] or [""], dtype="<U16")


def _process_groups(timeline: Timeline, rows: Ints, names: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the process group of each row of `work`."""
    number = timeline.work.group[rows]
    stream = timeline.work.stream[rows]
    labels = np.array([*timeline.groups, ""])
    group = labels[np.where(number >= 0, number, len(labels) - 1)]
    is_recorded = number >= 0
    if is_recorded.any():
        return _fill_unknown(group, ~is_recorded, stream)
    for name in distinct(names):
        rows_of_name = names == name
        if len(distinct(stream[rows_of_name])) > 1:
            group = np.where(rows_of_name, np.char.add("stream ", stream.astype(str)), group)
    return group


def _fill_unknown(values: NDArray[np.str_], unknown: NDArray[np.bool_], key: Ints) -> NDArray[np.str_]:
    """Replace unknown `values` by the value that all known ones of the same `key` have in common."""
    values = values.copy()
    for this_key in distinct(key[unknown]):
        same = key == this_key
        common = distinct(values[same & ~unknown])
        if len(common) == 1:
            values[same & unknown] = common[0]
    return values
