"""Communication between ranks: which collectives ran."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gapless.analyze.profile.trace_steps import is_communication
from gapless.model.profile import Collectives
from gapless.trace.timeline import Ints, Timeline, distinct

KEPT = 512
"""How many kernels of one process group and name are kept, the first ones: a summary has to stay small."""

UNNAMED = "collective"
"""A communication kernel whose name does not tell what it does (``ncclDevKernel_Generic``)."""

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
_CALLS = re.compile(r"(?:nccl|rccl|xccl|hccl|ucc|gloo|mpi):|_?c10d(?:_functional)?::")
"""Host spans that say which collective is being launched."""

_VAGUE = ("send_recv", UNNAMED)
"""What a kernel's name says of all-to-all exchanges too, and of everything in builds with one kernel."""

_DEPTH = 24
"""How far up from the launching call the collective's own span is looked for."""


def normalized(name: str) -> str:
    """The collective that a kernel, an operator or an annotation is of, "" where the name does not say.

    One of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``,
    ``gather``, ``scatter``, ``send_recv`` and ``barrier``.
    """
    plain = name.replace("ReduceScatter", "reduce_scatter").replace("_allgather_base", "all_gather")
    plain = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", plain)  # AllReduce, SendRecv
    for kind, pattern in _KINDS:
        if pattern.search(plain):
            return kind
    return ""


def collectives(timeline: Timeline, device: int) -> tuple[Collectives, ...]:
    """The communication kernels of `device` by process group and name, each in order, the first `KEPT`.

    The name comes from the kernel's own, or from the span that launched it where the kernel's is vague:
    NCCL runs an all-to-all as sends and receives. Kernels launched before the recording began take the name
    and the group of the others with their kernel name on their stream, if those agree. Where no groups were
    recorded and one name runs on several streams, the stream stands for the group.
    """
    rows = np.flatnonzero(is_communication(timeline) & (timeline.work.device == device))
    if not len(rows):
        return ()
    names = _names(timeline, rows)
    groups = _groups(timeline, rows, names)
    work = timeline.work
    found = []
    for name, group in sorted(set(zip(names.tolist(), groups.tolist(), strict=True))):
        members = rows[(names == name) & (groups == group)][:KEPT]
        found.append(
            Collectives(
                name=name,
                group=group,
                start=tuple(work.start[members].tolist()),
                length=tuple((work.end[members] - work.start[members]).tolist()),
                elements=tuple(work.elements[members].tolist()),
            )
        )
    return tuple(found)


def _names(timeline: Timeline, rows: Ints) -> NDArray[np.str_]:
    """The collective of each row of `work`."""
    numbers, which = np.unique(timeline.work.name[rows], return_inverse=True)
    own = np.array([normalized(timeline.names[number]) or UNNAMED for number in numbers.tolist()])[which]
    told = _launching(timeline, rows)
    vague = np.isin(own, _VAGUE)
    found = np.where((vague & (told != "")) | (told == "barrier"), told, own)
    unknown = vague & (told == "")
    if unknown.any() and not unknown.all():
        key = timeline.work.name[rows].astype(np.int64) * 2**32 + timeline.work.stream[rows] % 2**32
        found = _adopted(found, unknown, key)
    return found


def _launching(timeline: Timeline, rows: Ints) -> NDArray[np.str_]:
    """The collective that the host spans around the launch of each row name, "" where none does."""
    host, parents = timeline.host, timeline.parents
    at = timeline.launchers[rows]
    told = np.full(len(rows), "", dtype="<U16")
    wanted = _per_name(timeline, lambda name: normalized(name) if _CALLS.match(name) else "")
    barrier = _per_name(timeline, lambda name: "barrier" if name == "c10d::barrier" else "")
    for _ in range(_DEPTH):
        there = at >= 0
        if not there.any():
            break
        name = np.where(there, host.name[at], 0)
        fresh = there & (told == "")
        told[fresh] = wanted[name[fresh]]
        told[there & (barrier[name] != "")] = "barrier"
        at = np.where(there, parents[at], -1)
    return told


def _per_name(timeline: Timeline, say: Callable[[str], str]) -> NDArray[np.str_]:
    return np.array([say(name) for name in timeline.names] or [""], dtype="<U16")


def _groups(timeline: Timeline, rows: Ints, names: NDArray[np.str_]) -> NDArray[np.str_]:
    """The process group of each row of `work`."""
    number = timeline.work.group[rows]
    stream = timeline.work.stream[rows]
    labels = np.array([*timeline.groups, ""])
    group = labels[np.where(number >= 0, number, len(labels) - 1)]
    known = number >= 0
    if known.any():
        return _adopted(group, ~known, stream)
    for name in distinct(names):
        those = names == name
        if len(distinct(stream[those])) > 1:
            group = np.where(those, np.char.add("stream ", stream.astype(str)), group)
    return group


def _adopted(values: NDArray[np.str_], unknown: NDArray[np.bool_], key: Ints) -> NDArray[np.str_]:
    """`values`, the unknown ones replaced by what all known ones of the same key have in common."""
    values = values.copy()
    for one in distinct(key[unknown]):
        same = key == one
        common = distinct(values[same & ~unknown])
        if len(common) == 1:
            values[same & unknown] = common[0]
    return values
