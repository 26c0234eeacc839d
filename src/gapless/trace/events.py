"""The parts of a Kineto event that Gapless reads; everything else in the file is skipped unparsed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

_JSON_KEYS = {
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


class Args(msgspec.Struct, frozen=True, gc=False, rename=lambda name: _JSON_KEYS.get(name, name)):
    """The arguments of events of all kinds; -1 and "" mean absent."""

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
    """A `TraceEvent` whose time no float can represent: fractions of microseconds since 1970."""

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


class DeviceRecord(
    msgspec.Struct, gc=False, rename={"multiprocessors": "numSms", "memory": "totalGlobalMem"}
):
    """A GPU as the profiler describes it."""

    id: int = -1
    name: str = ""
    multiprocessors: int = 0
    memory: int = 0


class Distributed(msgspec.Struct, gc=False):
    """Rank of this process, number of ranks and communication backend."""

    rank: int = -1
    world_size: int = 0
    backend: str = ""


class GaplessRecord(msgspec.Struct, gc=False):
    """What `gapless profile` adds to a file that it records: the length of a step before it (ns)."""

    unrecorded_step: int = 0


class Head(msgspec.Struct, gc=False):
    """Facts that a file states about the whole run, before and after its events."""

    base: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    devices: list[DeviceRecord] = msgspec.field(default_factory=list, name="deviceProperties")
    devices_before_1_9: list[DeviceRecord] = msgspec.field(default_factory=list, name="computeProperties")
    distributed: Distributed = msgspec.field(default_factory=Distributed, name="distributedInfo")
    with_stack: int = 0
    profile_memory: int = 0
    record_shapes: int = 0
    gapless: GaplessRecord | None = None


# Values that are not of the type they should be -------------------------------------------------------

_DIGITS = re.compile(r"-?\d+")
_INT64 = 1 << 63
"""The first number too large for a signed 64-bit column."""
_UNKNOWN_32 = 0xFFFFFFFF
"""-1 as an unsigned number: a stream or device the profiler does not know, in some files."""


def to_integer(value: object) -> int:
    """Return `value` as a number that fits a column: "0x7" and "stream 7" give 7, anything without a number
    -1."""
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            digits = _DIGITS.search(value)
            number = int(digits.group()) if digits and len(digits.group()) < 40 else -1
    elif isinstance(value, int):
        number = int(value)
    elif isinstance(value, float | Decimal):
        number = int(value) if math.isfinite(value) else -1
    else:
        return -1
    return number if -_INT64 <= number < _INT64 else ((number + _INT64) % (2 * _INT64)) - _INT64


def device_number(value: object) -> int:
    """Return the number of a device or stream, -1 for one the profiler does not know."""
    number = to_integer(value)
    return -1 if number == _UNKNOWN_32 else number


def to_real(value: object) -> float:
    """Return `value` as a finite float, NaN if it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever JSON holds
    except (TypeError, ValueError, OverflowError):
        return NAN
    return number if math.isfinite(number) else NAN


def _real_or_minus_one(value: object) -> float:
    number = to_real(value)
    return -1.0 if number != number else number


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _to_id(value: object) -> int | str:
    return value if isinstance(value, int | str) else to_integer(value)


def _to_decimal(value: object) -> Decimal:
    """Return `value` as a finite decimal, NaN if it is none."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return Decimal("NaN")
    return number if number.is_finite() else Decimal("NaN")


_CONVERTERS: dict[str, Callable[[object], Any]] = {
    "int": to_integer,
    "float | str": _real_or_minus_one,
    "str": _to_text,
    "int | str": to_integer,
}
_ARG_CONVERTERS = [
    (argument.encode_name, argument.name, _CONVERTERS[Args.__annotations__[argument.name]])
    for argument in msgspec.structs.fields(Args)
    if argument.type is not msgspec.Raw
]


def convert_event(fields: dict[str, Any], exact: bool = False) -> Event:
    """Build an event from decoded JSON of any types; values that cannot be converted count as absent."""
    args_value = fields.get("args")
    args = NO_ARGS
    if isinstance(args_value, dict):
        args = Args(
            **{name: take(args_value[key]) for key, name, take in _ARG_CONVERTERS if key in args_value}
        )
    return (ExactEvent if exact else TraceEvent)(
        ph=_to_text(fields.get("ph")),
        cat=_to_text(fields.get("cat")),
        name=_to_text(fields.get("name")),
        pid=_to_id(fields.get("pid", "")),
        tid=_to_id(fields.get("tid", "")),
        ts=_to_decimal(fields.get("ts")) if exact else to_real(fields.get("ts")),  # type: ignore[arg-type]
        dur=to_real(fields.get("dur")),
        id=_to_id(fields.get("id", -1)),
        args=args,
    )
