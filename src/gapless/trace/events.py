"""What Gapless reads of an event in a Kineto file; everything else in the file is skipped unparsed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

_NAMES = {
    "external_id": "External id",
    "external_id_old": "external id",
    "index": "Ev Idx",
    "index_old": "Profiler Event Index",
    "blocks_per_sm": "blocks per SM",
    "occupancy": "est. achieved occupancy %",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "call_stack": "Call stack",
    "collective": "Collective name",
    "group": "Process Group Name",
    "elements": "In msg nelems",
    "device_type": "Device Type",
    "device_id": "Device Id",
    "address": "Addr",
    "memory": "Bytes",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
    "sync_stream": "wait_on_stream",
    "sync_record": "wait_on_cuda_event_record_corr_id",
    "sync_kind": "cuda_sync_kind",
    "sizes": "Input Dims",
    "types": "Input type",
    "values": "Concrete Inputs",
    "sizes_old": "Input dims",
}


_NOTHING = msgspec.Raw(b"")


class Args(msgspec.Struct, frozen=True, gc=False, rename=lambda name: _NAMES.get(name, name)):
    """The arguments of an event, of all kinds of events; -1 and "" stand for what is not there."""

    external_id: int | str = -1
    external_id_old: int | str = -1
    index: int | str = -1
    index_old: int | str = -1
    correlation: int = -1
    device: int | str = -1
    stream: int | str = -1
    bytes: int | str = -1
    blocks_per_sm: float | str = -1.0
    occupancy: float | str = -1.0
    sequence: int = -1
    forward_thread: int = 0
    call_stack: str = ""
    collective: str = ""
    group: str = ""
    elements: int = -1
    device_type: int = -1
    device_id: int = -1
    address: int = -1
    memory: int = 0
    allocated: int = -1
    reserved: int = -1
    sync_stream: int | str = -1
    sync_record: int | str = -1
    sync_kind: str = ""
    name: str = ""
    labels: str = ""
    sizes: msgspec.Raw = _NOTHING
    types: msgspec.Raw = _NOTHING
    values: msgspec.Raw = _NOTHING
    sizes_old: msgspec.Raw = _NOTHING


NO_ARGS = Args()
NAN = math.nan


class TraceEvent(msgspec.Struct, gc=False):
    """One element of ``traceEvents``. `ts` and `dur` are microseconds, NaN where there are none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = NAN
    dur: float = NAN
    id: int | str = -1
    args: Args = NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
    """The same, for files whose times a float does not hold: fractions of microseconds since 1970."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: Decimal = Decimal("NaN")
    dur: float = NAN
    id: int | str = -1
    args: Args = NO_ARGS


Event = TraceEvent | ExactEvent


class Device(msgspec.Struct, gc=False, rename={"multiprocessors": "numSms", "memory": "totalGlobalMem"}):
    """A GPU, as the profiler describes it."""

    id: int = -1
    name: str = ""
    multiprocessors: int = 0
    memory: int = 0


class Distributed(msgspec.Struct, gc=False):
    """Where this process stands among the ranks."""

    rank: int = -1
    world_size: int = 0
    backend: str = ""


class Head(msgspec.Struct, gc=False):
    """What a file says of itself, before and after its events."""

    base: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    devices: list[Device] = msgspec.field(default_factory=list, name="deviceProperties")
    devices_before_1_9: list[Device] = msgspec.field(default_factory=list, name="computeProperties")
    distributed: Distributed = msgspec.field(default_factory=Distributed, name="distributedInfo")
    with_stack: int = 0
    profile_memory: int = 0
    record_shapes: int = 0


# Values that are not of the type they should be -------------------------------------------------------

_DIGITS = re.compile(r"-?\d+")
_INT64 = 1 << 63
_UNKNOWN_32 = 0xFFFFFFFF
"""A stream or a device that the profiler does not know, in files that print it unsigned."""


def integer(value: object) -> int:
    """`value` as a number that fits a column: "0x7" is 7, "stream 7" is 7, what is none is -1."""
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            found = _DIGITS.search(value)
            number = int(found.group()) if found and len(found.group()) < 40 else -1
    elif isinstance(value, int):
        number = int(value)
    elif isinstance(value, float | Decimal):
        number = int(value) if math.isfinite(value) else -1
    else:
        return -1
    return number if -_INT64 <= number < _INT64 else ((number + _INT64) % (2 * _INT64)) - _INT64


def place(value: object) -> int:
    """A device or a stream: as :func:`integer`, and -1 for what the profiler does not know."""
    number = integer(value)
    return -1 if number == _UNKNOWN_32 else number


def real(value: object) -> float:
    """`value` as a finite float, NaN for what is none."""
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever JSON holds
    except (TypeError, ValueError, OverflowError):
        return NAN
    return number if math.isfinite(number) else NAN


def _measure(value: object) -> float:
    number = real(value)
    return -1.0 if number != number else number


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _identity(value: object) -> int | str:
    return value if isinstance(value, int | str) else integer(value)


def _decimal(value: object) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return Decimal("NaN")
    return number if number.is_finite() else Decimal("NaN")


_BY_TYPE: dict[str, Callable[[object], Any]] = {
    "int": integer,
    "float | str": _measure,
    "str": _text,
    "int | str": integer,
}
_ARGS = [
    (one.encode_name, one.name, _BY_TYPE[Args.__annotations__[one.name]])
    for one in msgspec.structs.fields(Args)
    if one.type is not msgspec.Raw
]


def lenient(found: dict[str, Any], exact: bool = False) -> Event:
    """The event in `found`, whatever its values are: what cannot be understood counts as not there."""
    inside = found.get("args")
    args = NO_ARGS
    if isinstance(inside, dict):
        args = Args(**{name: take(inside[key]) for key, name, take in _ARGS if key in inside})
    return (ExactEvent if exact else TraceEvent)(
        ph=_text(found.get("ph")),
        cat=_text(found.get("cat")),
        name=_text(found.get("name")),
        pid=_identity(found.get("pid", "")),
        tid=_identity(found.get("tid", "")),
        ts=_decimal(found.get("ts")) if exact else real(found.get("ts")),  # type: ignore[arg-type]
        dur=real(found.get("dur")),
        id=_identity(found.get("id", -1)),
        args=args,
    )
