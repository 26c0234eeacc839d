"""The operators of a real profile with recorded shapes, as a programme would name them, and what they took.

What they write is not in a profile: it is worked out by running each operator on meta tensors.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from gapless.analyze.kernel_times.recorded import nested
from gapless.model.programme import Entry
from gapless.trace.read import read
from gapless.trace.timeline import HostKind, Timeline, WorkKind

DTYPES = {
    "float": torch.float32, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16,
    "double": torch.float64, "long int": torch.int64, "long": torch.int64, "long long": torch.int64,
    "int": torch.int32, "short": torch.int16, "bool": torch.bool, "unsigned char": torch.uint8,
    "signed char": torch.int8,
}  # fmt: skip
NUMBERED = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""Types by the numbers that profiles record for a `dtype` argument."""
LIKE_INPUT = (
    "threshold_backward",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "add",
    "mul",
    "relu",
    "gelu",
)
"""Operators of old profiles (without scalar arguments) whose output is like their input."""


@dataclass(frozen=True)
class Sample:
    """One call: its entry, and its nanoseconds and kernels on the device."""

    entry: Entry
    device: int
    kernels: int


def is_composite(name: str, cache: dict[str, bool] = {}) -> bool:  # noqa: B006 - a cache
    """Whether an operator is decomposed before it reaches the dispatch mode."""
    if name not in cache:
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
        is_decomposed = False
        if packet is not None:
            first = getattr(packet, packet.overloads()[0]).name()
            has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
            is_decomposed = has(first, "CompositeImplicitAutograd") and not has(first, "CUDA")
        cache[name] = is_decomposed
    return cache[name]


def samples(path: Path) -> list[Sample]:
    """Return the operators of the profile at `path` whose recorded arguments suffice to compute their
    traffic."""
    timeline = read(path)
    recorded = _arguments(path)
    described: dict[str, Entry | None] = {}
    timed_samples = []
    for row, work in _launched_work(timeline).items():
        if any(_crosses(timeline, work_row) for work_row in work):
            continue
        arguments = recorded.get(int(timeline.host.external[row]))
        if arguments is None:
            continue
        key = json.dumps(arguments)
        if key not in described:
            described[key] = _entry(*arguments)
        entry = described[key]
        if entry is not None:
            if _copies_bias(entry, timeline, work[0]):
                entry = msgspec.structs.replace(entry, inputs=((), *entry.inputs[1:]))
            took = int((timeline.work.end[work] - timeline.work.start[work]).sum())
            timed_samples.append(Sample(entry, took, len(work)))
    return timed_samples


LARGEST = 65535 * 32
"""Up to CUDA 12.0 cublasLt, whose products take a bias, refused larger sides (ATen's ``Blas.cpp``)."""


def _copies_bias(entry: Entry, timeline: Timeline, first: int) -> bool:
    """Whether this layer's torch copied the bias into the result first."""
    if entry.name != "aten::addmm" or all(side < LARGEST for shape in entry.inputs for side in shape):
        return False
    return "direct_copy_kernel" in timeline.names[timeline.work.name[first]]


def _crosses(timeline: Timeline, work: int) -> bool:
    """Whether this is a copy between host and device."""
    name = timeline.names[timeline.work.name[work]]
    return timeline.work.kind[work] == WorkKind.MEMCPY and "DtoD" not in name


def _launched_work(timeline: Timeline) -> dict[int, list[int]]:
    """Return for each operator that a recording would keep the device work it launched."""
    names, host = timeline.names, timeline.host
    wanted = [name.startswith("aten::") and not is_composite(name) for name in names]
    launched: defaultdict[int, list[int]] = defaultdict(list)
    for work, call in enumerate(timeline.launchers.tolist()):
        if call < 0:
            continue
        chain = [row for row in timeline.with_ancestors(call) if host.kind[row] == HostKind.OPERATOR]
        outer = [row for row in chain if wanted[host.name[row]]]
        if outer:
            launched[outer[-1]].append(work)
    return launched


def _arguments(path: Path) -> dict[int, tuple[str, list[Any], list[str], list[str]]]:
    """Return by external id an operator's name and its arguments' shapes, types and values."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    document = json.loads(text, strict=False)
    events = document["traceEvents"] if isinstance(document, dict) else document
    arguments_of = {}
    for event in events:
        values = event.get("args") or {}
        shapes = values.get("Input Dims", values.get("Input dims"))
        number = values.get("External id", values.get("external id"))
        if shapes is not None and number is not None:
            types = values.get("Input type") or values.get("Input types") or [""] * len(shapes)
            concrete = values.get("Concrete Inputs") or [""] * len(shapes)
            arguments_of[int(number)] = (event["name"], shapes, types, concrete)
    return arguments_of


def _entry(name: str, shapes: list[Any], types: list[str], concrete: list[str]) -> Entry | None:
    if nested(name, types):
        return None
    arguments: list[Any] = []
    inputs: list[torch.Tensor] = []
    for shape, kind, value in zip(shapes, types, concrete, strict=False):
        if kind in DTYPES:
            arguments.append(torch.empty(shape, dtype=DTYPES[kind], device="meta"))
            inputs.append(arguments[-1])
        elif shape and isinstance(shape[0], list):
            arguments.append([torch.empty(sizes, device="meta") for sizes in shape])
            inputs += arguments[-1]
        else:
            arguments.append(_value(value))
    outputs = _run(name, arguments)
    stem = name.removeprefix("aten::")
    if outputs is None and stem == "cudnn_convolution_backward":
        source, gradient, weight = (tensor for tensor in inputs if tensor.dim() > 2)
        inputs, outputs = [gradient, source, weight], [source, weight]
    if outputs is None and stem in LIKE_INPUT and inputs:
        outputs = [max(inputs, key=torch.Tensor.numel)]
    if outputs is None or not inputs + outputs:
        return None
    return Entry(
        name=name,
        dtype=str((inputs + outputs)[0].dtype).removeprefix("torch."),
        inputs=tuple(tuple(tensor.shape) for tensor in inputs[:8]),
        outputs=tuple(tuple(tensor.shape) for tensor in outputs),
        tensors=len(inputs),
        elements=sum(math.prod(tensor.shape) for tensor in inputs),
        reads=sum(tensor.nbytes for tensor in inputs),
        writes=sum(tensor.nbytes for tensor in outputs),
        tf32="convolution" in name,  # torch's settings, where nobody changes them
    )


def _value(text: str) -> Any:
    words = {"": None, "inf": math.inf, "-inf": -math.inf}
    if text in words:
        return words[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _run(name: str, arguments_given: list[Any]) -> list[torch.Tensor] | None:
    """Run the operator on meta tensors; None if no overload takes the arguments."""
    for function in _overloads(name):
        arguments = {}
        for argument, value in zip(function._schema.arguments, arguments_given, strict=False):
            if argument.name == "device":
                arguments["device"] = torch.device("meta")
            elif argument.name == "dtype":
                arguments["dtype"] = NUMBERED.get(value) if isinstance(value, int) else None
            elif argument.name not in ("layout", "pin_memory", "generator") and value is not None:
                arguments[argument.name] = value
        try:
            out = function(**arguments)
        except Exception:  # meta kernels raise anything for arguments of another overload
            continue
        first = function._schema.arguments[0].alias_info if function._schema.arguments else None
        if first is not None and first.is_write:
            out = arguments_given[0]
        outputs = out if isinstance(out, (tuple, list)) else [out]
        return [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
    return None


def _overloads(name: str) -> Iterator[Any]:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    for overload in packet.overloads() if packet is not None else ():
        if "out" not in overload:
            yield getattr(packet, overload)
