"""Count what profiles of real GPUs show of operators: calls, and calls in which the CPU waited.

A signature is an outermost ATen operator with the sizes, types and plain values of its arguments; the columns
are those of ``benchmarks/evidence/signatures.tsv``, to which anybody can add.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gapless.files.sources import open_source
from gapless.trace.timeline import HostKind, Timeline

COLUMNS = (
    "op", "dims", "types", "concrete", "calls", "calls_that_waited", "waits", "with_h2d_copy",
    "with_d2h_copy", "profiles", "gpus",
)  # fmt: skip
COPIES = re.compile(r"aten::(to|_to_copy|copy_|item|_local_scalar_dense|pin_memory|cuda|cpu)")
"""Operators that copy: for them the number of bytes matters, not the layout."""
_CHUNK_BYTES = 1 << 22
"""Bytes read at a time, so that a compressed file is not unpacked in one call."""
_WAITS = re.compile(
    r"(cuda|hip)(Stream|Device|Event|Ctx)Synchronize|cu(Stream|Event|Ctx)Synchronize"
    r"|(cuda|hip)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|WithStream)?"
)
_TO_DEVICE, _FROM_DEVICE = re.compile(r"HtoD|HostToDevice"), re.compile(r"DtoH|DeviceToHost")
_MIN_LEFT_OUT = 20
"""Whole numbers from here on are left out as sizes; smaller ones are dimensions, types and flags."""


class CallCounts(NamedTuple):
    """How often profiles show a signature, and with how many waits and copies."""

    calls: int = 0
    calls_that_waited: int = 0
    waits: int = 0
    with_h2d_copy: int = 0
    with_d2h_copy: int = 0
    profiles: int = 0

    def __add__(self, other: Any) -> CallCounts:
        return CallCounts(*(a + b for a, b in zip(self, other, strict=True)))


class Signature(NamedTuple):
    """An operator call: sizes, types and plain values of its arguments as JSON, and the GPU."""

    op: str
    dims: str
    types: str
    concrete: str
    gpu: str


ArgumentsById = Mapping[int, tuple[Any, Any, Any]]


class _Args(msgspec.Struct, rename={"external": "External id", "older": "external id", "dims": "Input Dims",
                                    "older_dims": "Input dims", "types": "Input type",
                                    "concrete": "Concrete Inputs"}):  # fmt: skip
    external: int | str = -1
    older: int | str = -1
    dims: Any = None
    older_dims: Any = None
    types: Any = None
    concrete: Any = None


class _TraceEvent(msgspec.Struct):
    args: _Args = msgspec.field(default_factory=_Args)


class _File(msgspec.Struct, rename={"events": "traceEvents"}):
    events: list[msgspec.Raw] = []


def read_arguments(path: str | os.PathLike[str]) -> dict[int, tuple[Any, Any, Any]]:
    """Return sizes, types and values of each operator's arguments, by external id, where recorded.

    Raises:
        UnreadableInput: the file cannot be read.
    """
    by_id = {}
    for event in _read_events(path):
        args = event.args
        dims = args.dims if args.dims is not None else args.older_dims
        number = args.external if args.external != -1 else args.older
        if dims is not None and str(number).isdigit():
            by_id[int(number)] = (dims, args.types, args.concrete)
    return by_id


def _read_events(path: str | os.PathLike[str]) -> Iterator[_TraceEvent]:
    """Yield the events of a file that records shapes; none if the file is damaged."""
    with open_source(os.fspath(path)) as source:
        data = bytearray()
        while piece := source.read(_CHUNK_BYTES):
            data += piece
    if b'"Input Dims"' not in data and b'"Input dims"' not in data:
        return
    try:
        events = msgspec.json.decode(data, type=_File).events
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    decoder = msgspec.json.Decoder(_TraceEvent)
    for raw in events:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield decoder.decode(raw)


def count_signatures(
    timeline: Timeline, recorded_arguments: ArgumentsById, shapes: bool = False
) -> dict[Signature, CallCounts]:
    """Count calls and waits of each signature in `timeline` that called the driver.

    `recorded_arguments` are by external id. Unless `shapes` is set, sizes are reduced to what decides a wait.
    """
    host = timeline.host
    waits, copies = _by_operator(timeline)
    gpus = "; ".join(sorted({gpu.name for gpu in timeline.facts.gpus if gpu.name})) or "?"
    totals: dict[Signature, CallCounts] = defaultdict(CallCounts)
    for row, waited in waits.items():
        op = timeline.names[host.name[row]]
        recorded = recorded_arguments.get(int(host.external[row]), (None, None, None))
        args = recorded if shapes else reduce_arguments(op, *recorded)
        to, back = copies[row, True] > 0, copies[row, False] > 0
        dims, types, concrete = map(json.dumps, args)
        signature = Signature(op, dims, types, concrete, gpus)
        totals[signature] += CallCounts(1, waited > 0, waited, to, back, 0)
    return {signature: counts._replace(profiles=1) for signature, counts in totals.items()}


def _by_operator(timeline: Timeline) -> tuple[Counter[int], Counter[tuple[int, bool]]]:
    """Count waits by row of the outermost operator, and copies by that row and by direction."""
    host, work = timeline.host, timeline.work
    outermost = _outermost(timeline)
    blocks = timeline.names_where(_WAITS.fullmatch)
    waits: Counter[int] = Counter()
    for call in np.flatnonzero(host.kind == HostKind.CALL).tolist():
        row = int(outermost[call])
        if row >= 0:
            waits[row] += bool(blocks[host.name[call]])
    copies: Counter[tuple[int, bool]] = Counter()
    for to_device, pattern in ((True, _TO_DEVICE), (False, _FROM_DEVICE)):
        named = timeline.names_where(pattern.search)
        for copy in np.flatnonzero(named[work.name]).tolist() if len(work) else ():
            launcher = int(timeline.launchers[copy])
            if launcher >= 0 and outermost[launcher] >= 0:
                copies[int(outermost[launcher]), to_device] += 1
    return waits, copies


def _outermost(timeline: Timeline) -> Any:
    """Return for each host row its outermost ATen operator, or -1."""
    host, parents = timeline.host, timeline.parents
    aten = timeline.names_where(lambda name: name.startswith("aten::"))
    is_operator = (host.kind == HostKind.OPERATOR) & (aten[host.name] if len(host) else False)
    outermost = np.where(is_operator, np.arange(len(host)), -1)
    for row in np.argsort(host.start, kind="stable").tolist():
        around = parents[row]
        if around >= 0 and outermost[around] >= 0:
            outermost[row] = outermost[around]
    return outermost


# -- arguments that reveal nothing about a model -----------------------------------------------------------


def reduce_arguments(op: str, dims: Any, types: Any, concrete: Any) -> tuple[Any, Any, Any]:
    """Replace sizes that decide no wait: equal sizes stay equal, 0 and 1 stay.

    For an operator that copies, the sizes become the next lower power of two of its element count. Whole
    numbers from 20 up, and all other numbers, are dropped.
    """
    if not isinstance(dims, list):
        return dims, types, concrete
    standins: dict[int, int] = {}
    values = [_keep_flags(value) for value in concrete] if isinstance(concrete, list) else concrete
    return _substitute_sizes(dims, standins, COPIES.fullmatch(op) is not None), types, values


def _substitute_sizes(dims: Any, standins: dict[int, int], copies: bool) -> Any:
    """Replace sizes above 1 by stand-ins, or by a power of two if the operator `copies`."""
    if not isinstance(dims, list):
        return dims if not isinstance(dims, int) or dims < 2 else standins.setdefault(dims, len(standins) + 2)
    if copies and dims and all(isinstance(size, int) for size in dims):
        numbers = math.prod(dims)
        return [1 << (numbers.bit_length() - 1)] if numbers > 1 else dims
    return [_substitute_sizes(dim, standins, copies) for dim in dims]


def _keep_flags(value: Any) -> Any:
    """Return `value` if it consists of flags and small numbers only, else ""."""
    if not isinstance(value, str):
        return ""
    words = filter(None, re.split(r"[\[\], ]+", value))
    return value if all(word in ("True", "False") or _is_small(word) for word in words) else ""


def _is_small(word: str) -> bool:
    return re.fullmatch(r"-?\d{1,2}", word) is not None and abs(int(word)) < _MIN_LEFT_OUT


# -- in a file ---------------------------------------------------------------------------------------------


def add_counts(parts: Iterable[Mapping[Signature, CallCounts]]) -> dict[Signature, CallCounts]:
    """Add up the counts of several profiles."""
    totals: dict[Signature, CallCounts] = defaultdict(CallCounts)
    for part in parts:
        for signature, counts in part.items():
            totals[signature] += counts
    return dict(totals)


def format_lines(by_signature: Mapping[Signature, CallCounts]) -> Iterator[str]:
    """Yield `by_signature` as tab-separated lines, the column names first."""
    yield "\t".join(COLUMNS)
    for signature, counts in sorted(by_signature.items()):
        *words, gpu = signature
        yield "\t".join([*words, *map(str, map(int, counts)), gpu])
