"""Signatures of operators, counted in profiles of real GPUs, called again on the emulated device.

A signature is an outermost ATen operator with the sizes, types and plain arguments that a profile recorded;
how often it was called, in how many of those calls the CPU waited, and in how many there was a copy between
host and device. Where its tensors were a profile does not say: a signature is called with each placement in
turn, and those count whose copies are the ones that the profile has.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gapless.analyze.evidence import COLUMNS, COPIES, CallCounts
from gapless.emulation.dispatch.operators import OperatorMode
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.waits.call import Call
from gapless.emulation.waits.table import WaitCondition, waits_table
from gapless.torch_internals import has_kernel, names_of_operators, schemas_of_operator

Tensor = torch.Tensor
FILE = Path(__file__).with_name("evidence") / "signatures.tsv"
DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16, "long int": torch.int64, "long": torch.int64, "int": torch.int32,
    "short int": torch.int16, "short": torch.int16, "signed char": torch.int8, "unsigned char": torch.uint8,
    "bool": torch.bool, "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn, "c10::Float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
LISTS = ("TensorList", "GenericList")
KINDS = {"float": float, "double": float, "Double": float, "Int": int, "Bool": bool}
NO_ARGUMENTS = "no arguments were recorded"
SMALL = 48
"""Larger sides are shrunk, consistently, wherever the operator still accepts them."""
LARGEST = 1 << 25
"""Largest number of elements in all tensors of a call that is made."""


@dataclass(frozen=True)
class Signature:
    """An operator with the arguments a profile recorded, and counts of its calls."""

    op: str
    dims: str
    types: str
    concrete: str
    counts: CallCounts
    gpus: str

    @property
    def arguments(self) -> list[tuple[Any, str, str | None]] | None:
        """``(sizes, type, value as text)`` of each argument; None if a profile did not record them."""
        dims, types, concrete = (json.loads(text) for text in (self.dims, self.types, self.concrete))
        if not types or len(dims) != len(types):
            return None
        values = concrete if concrete and len(concrete) == len(types) else [None] * len(types)
        return list(zip(dims, types, values, strict=True))


class Observation(NamedTuple):
    """What one call does on the emulated device.

    Its waits, whether it copies from or to the host, the rows of the table of waits that applied, rows of its
    operators that did not, and the number of arguments on the host.
    """

    waits: int
    h2d: bool
    d2h: bool
    rows: frozenset[WaitCondition]
    spared: frozenset[WaitCondition]
    on_host: int


def read(file: Path) -> Iterator[Signature]:
    """Yield the signatures of a TSV file with these `COLUMNS`."""
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            counts = CallCounts(*(int(row[name]) for name in COLUMNS[4:10]))
            yield Signature(row["op"], row["dims"], row["types"], row["concrete"], counts, row["gpus"])


def write(file: Path, signatures: Sequence[Signature]) -> None:
    """Write `signatures` to `file` in the format of `read`."""
    lines = ["\t".join(COLUMNS)]
    for signature in signatures:
        words = [
            signature.op,
            signature.dims,
            signature.types,
            signature.concrete,
            *map(str, signature.counts),
            signature.gpus,
        ]
        lines.append("\t".join(words))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


# -- fewer signatures that say the same --------------------------------------------------------------------


def condense(signatures: Sequence[Signature]) -> list[Signature]:
    """Merge signatures that differ only in sizes and waited alike into the smallest of them."""
    kinds: dict[Any, list[Signature]] = {}
    for signature in signatures:
        kinds.setdefault(_group_key(signature), []).append(signature)
    return [_join(alike) for _, alike in sorted(kinds.items(), key=lambda item: repr(item[0]))]


def _group_key(signature: Signature) -> Any:
    counts = signature.counts
    shares = tuple(_share(part, counts.calls) for part in (counts[1], counts[3], counts[4]))
    arguments = signature.arguments
    if arguments is None:
        return signature.op, signature.dims if counts.calls_that_waited else "", "", shares
    parts = tuple((_sizes(dims, kind), kind, _value(value)) for dims, kind, value in arguments)
    return (
        signature.op,
        parts,
        signature.concrete == "null",
        shares,
        counts.waits // max(counts.calls_that_waited, 1),
    )


def _share(part: int, whole: int) -> str:
    return "none" if not part else "all" if part == whole else "some"


def _sizes(dims: Any, kind: str) -> Any:
    if dims and isinstance(dims[0], list):
        return min(len(dims), 3), len(dims[0])
    numbers = math.prod(dims)
    size = next((step for step in (0, 1, 1 << 10, 1 << 14, 1 << 18) if numbers <= step), -1)
    return len(dims), size, tuple(side if side < 2 else "n" for side in dims)


def _value(value: str | None) -> str | None:
    """Return `value` with large numbers replaced; small ones are types, dimensions and flags."""
    if value is None or re.fullmatch(r"-?\d|1\d|True|False|", value):
        return value
    return re.sub(r"-?\d[\d.e+-]*", "n", value)


def _join(alike: list[Signature]) -> Signature:
    smallest = min(
        alike,
        key=lambda signature: (
            _element_count(json.loads(signature.dims)),
            signature.dims,
            signature.concrete,
        ),
    )
    counts = alike[0].counts
    for signature in alike[1:]:
        counts += signature.counts
    gpus = sorted({name for signature in alike for name in signature.gpus.split("; ") if name != "?"})
    return Signature(
        smallest.op, smallest.dims, smallest.types, smallest.concrete, counts, "; ".join(gpus) or "?"
    )


def _element_count(dims: Any) -> int:
    if not dims:
        return 0
    return sum(map(_element_count, dims)) if isinstance(dims[0], list) or dims[0] == [] else math.prod(dims)


# -- arguments like those ----------------------------------------------------------------------------------


class Unknown(Exception):
    """A signature that cannot be called, with the reason."""


@dataclass(frozen=True)
class Way:
    """One possible call of a signature: words on where its arguments are, and what makes them."""

    words: str
    function: Callable[..., Any]
    arguments: Callable[[], list[Any]]


def shrink(signature: Signature) -> Signature | None:
    """Return the signature with small tensors; None if sizes matter or are small already."""
    if COPIES.fullmatch(signature.op):
        return None

    def shrunk(text: re.Match[str]) -> str:
        number = int(text[0])
        return text[0] if number <= SMALL else str(SMALL // 2 + number % (SMALL // 2))

    dims = re.sub(r"\d+", shrunk, signature.dims)
    return None if dims == signature.dims else replace(signature, dims=dims)


def ways(signature: Signature) -> Iterator[Way]:
    """Yield each possible call of the signature; only the one on the device if it never waited or copied.

    Raises:
    Unknown: no operator of this torch takes such arguments, or none were recorded.
    """
    arguments = signature.arguments
    if arguments is None:
        raise Unknown(NO_ARGUMENTS)
    if COPIES.fullmatch(signature.op) and arguments[0][1] == "":
        raise Unknown("a tensor was copied of which nothing was recorded")
    if _element_count(json.loads(signature.dims)) > LARGEST:
        raise Unknown("too large to be called without need")
    overloads = list(_overloads(signature.op, arguments))
    if not overloads:
        raise Unknown("no overload of this torch takes such arguments")
    first, second, *_ = [dims for dims, kind, _ in arguments if kind in DTYPES] + [[], []]
    plainly = not (signature.counts.waits or signature.counts.with_h2d_copy or signature.counts.with_d2h_copy)
    for function, expected in overloads:
        for pinned in (False, True):
            for choice in _choices(arguments, expected, Host(pinned, first, second)):
                words = ", ".join(word for word, _ in choice if word)
                if pinned and "on the host" not in words:
                    continue
                makes = [make for _, make in choice]
                yield Way(words, function, lambda makes=makes: [make() for make in makes])
                if plainly:
                    break


@dataclass(frozen=True)
class Host:
    """Makes arguments on the host; knows the sizes of the indexed tensor and of the values put into it."""

    pinned: bool
    indexed: list[int]
    put_there: list[int]

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.pinned else tensor

    def behind(self, number: int) -> list[Tensor | None]:
        """Return `number` indices after the dimensions not indexed, as the shape of the values implies."""
        first: list[Tensor | None] = [None] * (len(self.put_there) - 1)
        return first + [self.put(_index(self.put_there[-1:]))] * number

    def mask(self, dimensions: int) -> Tensor:
        """Return a mask over the first dimensions with as many true elements as rows are put, or all."""
        mask = torch.zeros(self.indexed[:dimensions], dtype=torch.bool)
        mask.view(-1)[: self.put_there[0] if self.put_there else None] = True
        return mask


def _overloads(op: str, arguments: list[tuple[Any, str, str | None]]) -> Iterator[tuple[Any, list[Any]]]:
    space, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    for schema in schemas_of_operator(op):
        expected = [argument.type for argument in schema.arguments]
        if len(expected) == len(arguments) and all(map(_accepts, expected, arguments)) and packet is not None:
            positions = sum(not argument.kwarg_only for argument in schema.arguments)
            names = [argument.name for argument in schema.arguments[positions:]]
            function = getattr(packet, schema.overload_name or "default")
            if op == "aten::to":  # its decomposition asks C++ for the device
                yield _converter([argument.name for argument in schema.arguments]), expected
            else:
                yield _by_name(function, positions, names), expected


def never_waits(op: str) -> bool:
    """Whether it is no copy, decomposes into no others, and has no row in the table of waits."""
    names = [name for name in names_of_operators() if name.partition(".")[0] == op]
    rows = [row for row in waits_table().rows if row.name.partition(".")[0] == op]
    made_of_others = any(has_kernel(name, "CompositeImplicitAutograd") for name in names)
    return bool(names) and not (rows or made_of_others or COPIES.fullmatch(op))


_DIVISIONS = ("aten::remainder", "aten::fmod", "aten::floor_divide", "aten::div")


def _by_name(function: Any, positions: int, names: list[str]) -> Callable[..., Any]:
    name = function._schema.name

    def call(*values: Any) -> Any:
        if name in _DIVISIONS:  # whole numbers divided by the zeros of made tensors end the process
            values = (values[0], _without_zeros(values[1]), *values[2:])
        return function(*values[:positions], **dict(zip(names, values[positions:], strict=True)))

    return call


def _without_zeros(divisor: Any) -> Any:
    return torch.ones_like(divisor) if isinstance(divisor, Tensor) else divisor or 1


def _converter(names: list[str]) -> Callable[..., Any]:
    def to(tensor: Tensor, *values: Any) -> Tensor:
        words = {name: value for name, value in zip(names[1:], values, strict=True) if value is not None}
        words.pop("layout", None), words.pop("pin_memory", None)
        other = words.pop("other", tensor)
        kind = words.pop("dtype", None)
        dtype = other.dtype if kind is None else _SCALAR_TYPES[kind]
        device = words.pop("device", other.device)
        return tensor.to(device=device, dtype=dtype, **{k: bool(v) for k, v in words.items() if v in (0, 1)})

    return to


_SCALAR_TYPES = {
    number: dtype
    for number, dtype in enumerate(
        (
            torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
            torch.float64, None, torch.complex64, torch.complex128, torch.bool, None, None, None,
            torch.bfloat16,
        )
    )
    if dtype is not None
}  # fmt: skip
"""c10's numbers of the types."""


def _accepts(expected: Any, argument: tuple[Any, str, str | None]) -> bool:
    dims, kind, value = argument
    text = str(expected)
    if kind in DTYPES and (dims or "Tensor" in text):
        return text in ("Tensor", "Optional[Tensor]") or (not dims and kind in KINDS and text in _PLAIN)
    if kind in LISTS:
        return text in ("List[Tensor]", "List[Optional[Tensor]]")
    if kind in ("Scalar", *KINDS):
        named = value not in (None, "", "True", "False") or kind != "Scalar"
        return text.removeprefix("Optional[").removesuffix("]") in (_PLAIN if named else (*_PLAIN, "bool"))
    if kind == "ScalarList":
        return text.removeprefix("Optional[").startswith("List[") and "Tensor" not in text
    plain_types = ("Device", "str", "Generator", "Layout", "number", "Tensor", "int", "bool")
    return text in plain_types or text.startswith(("Optional[", "List["))


_PLAIN = ("number", "int", "float", "bool", "SymInt", "Device", "Layout")
Make = Callable[[], Any]


def _choices(
    arguments: list[tuple[Any, str, str | None]], expected: list[Any], host: Host
) -> Iterator[tuple[tuple[str, Make], ...]]:
    each = [
        list(_ways(argument, str(kind), host)) for argument, kind in zip(arguments, expected, strict=True)
    ]
    if sum(len(options) > 1 for options in each) > 5:  # all on the device, or one argument on the host
        first = tuple(options[0] for options in each)
        yield first
        for at, options in enumerate(each):
            for other in options[1:]:
                yield (*first[:at], other, *first[at + 1 :])
        return
    yield from itertools.product(*each)


def _ways(argument: tuple[Any, str, str | None], expected: str, host: Host) -> Iterator[tuple[str, Make]]:
    dims, kind, value = argument
    if kind == "" and expected == "Tensor":  # a nested tensor: it has no storage
        yield "", lambda: _jagged_tensor().cuda()
    elif kind in DTYPES and expected in ("Tensor", "Optional[Tensor]"):
        yield "", lambda: _tensor(dims, DTYPES[kind]).cuda()
        yield "on the host", lambda: host.put(_tensor(dims, DTYPES[kind]))
    elif kind in LISTS and expected == "List[Tensor]":
        yield "", lambda: [_tensor(each, torch.float32).cuda() for each in dims]
    elif expected == "List[Optional[Tensor]]":
        sizes = [each for each in dims if each] if dims and isinstance(dims[0], list) else [[3]]
        yield "", lambda: [_index(each).cuda() for each in sizes]
        for number in range(1, len(host.indexed) + 1):
            yield "masks", lambda number=number: [host.mask(number).cuda()]
        for number in (1, 2, 3):  # their number is not recorded
            yield "indices on the host", lambda number=number: [host.put(_index(sizes[0]))] * number
            yield "indices on the host", lambda number=number: host.behind(number)
    elif expected.removeprefix("Optional[").startswith("Device"):
        yield "", lambda: torch.device("cuda")
        yield "to the host", lambda: torch.device("cpu")
    else:
        plain = _plain(value, kind, expected)
        yield "", lambda: plain
        if value is None and expected == "bool" and plain == 0:
            yield "flag", lambda: True


def _plain(value: str | None, kind: str, expected: str) -> Any:
    inner = expected.removeprefix("Optional[")
    if kind == "":
        return [] if expected == "List[Tensor]" else None
    if value is None or value == "":
        return None if inner != expected else [1, 1] if inner.startswith("List") else int(inner == "number")
    if inner.startswith("List"):
        return [_number(word) for word in value.strip("[] ").split(",") if word.strip()]
    return _number(value, "float" in inner)


def _number(word: str, real: bool = False) -> bool | int | float | None:
    word = word.strip()
    if word in ("True", "False"):
        return word == "True"
    try:
        number = float(word)
    except ValueError:
        return None
    return int(number) if number.is_integer() and "." not in word and not real else number


def _tensor(dims: list[int], dtype: torch.dtype) -> Tensor:
    tensor = torch.zeros(dims, dtype=dtype)
    return tensor if tensor.numel() < 2 else tensor.view(-1).index_fill_(0, torch.tensor([0]), 1).view(dims)


def _jagged_tensor() -> Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], layout=torch.jagged)


def _index(dims: list[int]) -> Tensor:
    return torch.zeros(dims, dtype=torch.int64)


# -- on the emulated device ----------------------------------------------------------------------------------


class Replayer:
    """Calls signatures on an emulated device and observes them.

    with Replayer("NVIDIA H100") as replayer:
    replayer.see(call)
    """

    def __init__(self, gpu: str) -> None:
        self.emulator = Emulator(EmulatorOptions(gpu, programme=True))
        self.copies: set[str] = set()
        self.rows: set[WaitCondition] = set()
        self.spared: set[WaitCondition] = set()

    def __enter__(self) -> Replayer:
        self.emulator.start()
        programme = self.emulator.recorder.programme
        assert programme is not None
        self._count = OperatorMode.count
        count, waits, events = OperatorMode.count, programme.wait, programme.event

        def counted(mode: OperatorMode, plan: Any, args: Any, kwargs: Any) -> int:
            call = Call(plan.func, args, kwargs, mode.on_device)
            met = {row for row, applies in plan.rows if applies(call)}
            self.rows |= met
            self.spared |= {row for row, _ in plan.rows} - met
            return count(mode, plan, args, kwargs)

        def wait(site: int, mechanism: str, detail: str, times: int, size: int, operator: str) -> None:
            self.copies.add(mechanism)
            candidates = (*waits_table().for_op(operator), *waits_table().for_call(operator))
            rows = [row for row in candidates if row.mechanism == mechanism]
            self.rows |= set(rows if len(rows) == 1 else ())  # reads for Python consult no table
            waits(site, mechanism, detail, times, size, operator)

        def event(entry: Any) -> None:
            self.copies.add(entry.mechanism)
            events(entry)

        OperatorMode.count = counted  # type: ignore[method-assign]
        programme.wait, programme.event = wait, event  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        OperatorMode.count = self._count  # type: ignore[method-assign]
        self.emulator.stop()

    def see(self, way: Way) -> Observation:
        """Return what a call waits for and copies, its arguments made beforehand."""
        arguments = way.arguments()
        before = self.emulator.recorder.total
        self.copies.clear()
        self.rows.clear()
        self.spared.clear()
        with torch.no_grad():
            way.function(*arguments)
        waits = self.emulator.recorder.total - before
        back = bool({"d2h", "read", "size", "status", "values"} & self.copies)
        spared = frozenset(self.spared - self.rows)
        on_host = way.words.count("on the host")
        return Observation(waits, "h2d" in self.copies, back, frozenset(self.rows), spared, on_host)
