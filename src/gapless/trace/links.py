"""Which operator of forward an operator of backward was made from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from gapless.trace.timeline import Host, HostKind, Ints, Links

Flows = Mapping[str, Sequence[tuple[int | str, int, int]]]
_EVALUATE = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"Backwards?\d*$")
_GRACE = 1000
"""Nanoseconds: files of whole microseconds round the start of an operator and of its flow apart."""


def links(host: Host, names: Sequence[str], flows: Flows) -> Links:
    """The links that the file holds, or where it holds none those that autograd's numbers give.

    `flows` are the ends of its arrows: (id, time, thread) by the phase ``s`` or ``f``, times and threads as
    in `host`.
    """
    if not len(host):
        return _none()
    found = _by_flows(host, flows)
    if not len(found.forward):
        found = _by_sequence(host, names)
    backward, first = np.unique(_outermost(host, names, found.backward), return_index=True)
    return Links(found.forward[first], backward)


def _none() -> Links:
    return Links(np.empty(0, np.int64), np.empty(0, np.int64))


def _by_flows(host: Host, flows: Flows) -> Links:
    """The operators that start where an arrow does."""
    ends = {key: (time, thread) for key, time, thread in flows["f"]}
    pairs = [(start, ends[key]) for key, *start in flows["s"] if key in ends]
    rows = np.flatnonzero(host.kind == HostKind.OPERATOR)
    if not pairs or not len(rows):
        return _none()
    span = int(host.end.max()) + 1
    keys = host.thread[rows].astype(np.int64) * span + host.start[rows]
    sides = []
    for side in range(2):
        time = np.array([pair[side][0] for pair in pairs], np.int64)
        thread = np.array([pair[side][1] for pair in pairs], np.int64)
        wanted = thread * span + time
        # The outermost operator that starts right there, else the nearest that does.
        at = np.minimum(np.searchsorted(keys, wanted), len(rows) - 1)
        before = np.maximum(at - 1, 0)
        at = np.where(np.abs(keys[before] - wanted) < np.abs(keys[at] - wanted), before, at)
        near = (np.abs(keys[at] - wanted) <= _GRACE) & (time >= -_GRACE) & (time < span)
        sides.append(np.where(near, rows[at], -1))
    good = (sides[0] >= 0) & (sides[1] >= 0)
    return Links(sides[0][good], sides[1][good])


def _by_sequence(host: Host, names: Sequence[str]) -> Links:
    """The last operator of forward with the number of the one of backward and a name that agrees.

    Autograd numbers its nodes per thread. An operator of forward bears the number of the next node at the
    time it starts, so that many bear the same; the node is made by the last of them.
    """
    numbered = (host.kind == HostKind.OPERATOR) & (host.sequence >= 0)
    backward = np.flatnonzero(numbered & (host.forward_thread > 0))
    forward = np.flatnonzero(numbered & (host.forward_thread <= 0))
    if not len(backward) or not len(forward):
        return _none()
    stem = cache(_stem)  # there are fewer names than operators by far

    def keyed(rows: Ints) -> Iterator[tuple[int, int, tuple[int, str]]]:
        columns = (rows, host.start[rows], host.sequence[rows], host.name[rows])
        for row, start, number, name in zip(*(column.tolist() for column in columns), strict=True):
            yield row, start, (number, stem(names[name]))

    candidates: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for row, start, key in keyed(forward[np.argsort(host.start[forward], kind="stable")]):
        candidates[key].append((row, start))
    matched: dict[int, list[int]] = {}
    for row, start, key in keyed(backward):
        earlier = [one for one, began in candidates.get(key, ()) if began < start]
        if earlier:
            matched[row] = earlier
    return _on_their_threads(host, matched)


def _on_their_threads(host: Host, matched: dict[int, list[int]]) -> Links:
    """Of the candidates those on the thread that most operators of the same forward thread come from.

    Backward names the thread of forward by a number of autograd's own.
    """
    votes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row, found in matched.items():
        votes[int(host.forward_thread[row])].update({int(host.thread[one]) for one in found})
    threads = {number: counted.most_common(1)[0][0] for number, counted in votes.items()}
    pairs = []
    for row, found in matched.items():
        thread = threads[int(host.forward_thread[row])]
        right = [one for one in found if host.thread[one] == thread]
        if right:
            pairs.append((right[-1], row))
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Links(both[:, 0], both[:, 1])


def _outermost(host: Host, names: Sequence[str], rows: Ints) -> Ints:
    """For operators of backward the engine's own around them, which also adds gradients up."""
    if not len(rows):
        return rows
    engine = np.fromiter((name.startswith(_EVALUATE) for name in names), bool, len(names))
    outer = np.flatnonzero(engine[host.name])
    if not len(outer):
        return rows
    last = outer[np.maximum(np.searchsorted(outer, rows, side="right") - 1, 0)]
    around = (last < rows) & (host.thread[last] == host.thread[rows]) & (host.end[last] >= host.end[rows])
    return np.where(around, last, rows)


def _stem(name: str) -> str:
    """What ``aten::_log_softmax`` and ``LogSoftmaxBackward0`` have in common."""
    name = name.removeprefix(_EVALUATE).rpartition("::")[2]
    return _BACKWARD.sub("", name).replace("_", "").lower()
