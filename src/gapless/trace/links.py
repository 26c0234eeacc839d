"""Find the forward operator that each backward operator belongs to."""

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
_FLOW_TOLERANCE_NS = 1000
"""Nanoseconds: files of whole microseconds round the start of an operator and of its flow differently."""


def find_links(host: Host, names: Sequence[str], flows: Flows) -> Links:
    """Return the links recorded in the file, else those that autograd's sequence numbers give.

    `flows` are the ends of the file's arrows: (id, time, thread) by the phase ``s`` or ``f``, times and
    threads as in `host`.
    """
    if not len(host):
        return _no_links()
    linked = _links_by_flows(host, flows)
    if not len(linked.forward):
        linked = _links_by_sequence(host, names)
    backward, first = np.unique(_engine_spans(host, names, linked.backward), return_index=True)
    return Links(linked.forward[first], backward)


def _no_links() -> Links:
    return Links(np.empty(0, np.int64), np.empty(0, np.int64))


def _links_by_flows(host: Host, flows: Flows) -> Links:
    """Link the operators that start where an arrow starts and where it ends."""
    ends = {key: (time, thread) for key, time, thread in flows["f"]}
    pairs = [(start, ends[key]) for key, *start in flows["s"] if key in ends]
    rows = np.flatnonzero(host.kind == HostKind.OPERATOR)
    if not pairs or not len(rows):
        return _no_links()
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
        near = (
            (np.abs(keys[at] - wanted) <= _FLOW_TOLERANCE_NS) & (time >= -_FLOW_TOLERANCE_NS) & (time < span)
        )
        sides.append(np.where(near, rows[at], -1))
    good = (sides[0] >= 0) & (sides[1] >= 0)
    return Links(sides[0][good], sides[1][good])


def _links_by_sequence(host: Host, names: Sequence[str]) -> Links:
    """Link each backward operator to the last earlier forward operator of its sequence number and name.

    Autograd numbers its nodes per thread. A forward operator carries the number of the next node at the time
    it starts, so many carry the same; the last of them creates the node.
    """
    numbered = (host.kind == HostKind.OPERATOR) & (host.sequence >= 0)
    backward = np.flatnonzero(numbered & (host.forward_thread > 0))
    forward = np.flatnonzero(numbered & (host.forward_thread <= 0))
    if not len(backward) or not len(forward):
        return _no_links()
    stem = cache(_name_stem)  # there are far fewer names than operators

    def rows_with_keys(rows: Ints) -> Iterator[tuple[int, int, tuple[int, str]]]:
        columns = (rows, host.start[rows], host.sequence[rows], host.name[rows])
        for row, start, number, name in zip(*(column.tolist() for column in columns), strict=True):
            yield row, start, (number, stem(names[name]))

    candidates: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for row, start, key in rows_with_keys(forward[np.argsort(host.start[forward], kind="stable")]):
        candidates[key].append((row, start))
    matched: dict[int, list[int]] = {}
    for row, start, key in rows_with_keys(backward):
        earlier = [row for row, began in candidates.get(key, ()) if began < start]
        if earlier:
            matched[row] = earlier
    return _keep_likely_thread(host, matched)


def _keep_likely_thread(host: Host, matched: dict[int, list[int]]) -> Links:
    """Keep the candidates on the host thread that gets most votes for their forward thread's number.

    Backward identifies the thread of forward by a number that only autograd uses.
    """
    votes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row, candidates in matched.items():
        votes[int(host.forward_thread[row])].update({int(host.thread[candidate]) for candidate in candidates})
    threads = {number: counted.most_common(1)[0][0] for number, counted in votes.items()}
    pairs = []
    for row, candidates in matched.items():
        thread = threads[int(host.forward_thread[row])]
        same_thread = [candidate for candidate in candidates if host.thread[candidate] == thread]
        if same_thread:
            pairs.append((same_thread[-1], row))
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Links(both[:, 0], both[:, 1])


def _engine_spans(host: Host, names: Sequence[str], rows: Ints) -> Ints:
    """Replace backward operators by the engine's span around them, which also adds up gradients."""
    if not len(rows):
        return rows
    engine = np.fromiter((name.startswith(_EVALUATE) for name in names), bool, len(names))
    outer = np.flatnonzero(engine[host.name])
    if not len(outer):
        return rows
    last = outer[np.maximum(np.searchsorted(outer, rows, side="right") - 1, 0)]
    around = (last < rows) & (host.thread[last] == host.thread[rows]) & (host.end[last] >= host.end[rows])
    return np.where(around, last, rows)


def _name_stem(name: str) -> str:
    """Return the common part of ``aten::_log_softmax`` and ``LogSoftmaxBackward0``."""
    name = name.removeprefix(_EVALUATE).rpartition("::")[2]
    return _BACKWARD.sub("", name).replace("_", "").lower()
