"""Copies by direction, memory, size, stride and stream: which make the CPU wait, and how fast they are.

    python benchmarks/gpu/copies.py                 # on a machine with a GPU: writes copies.md
    python benchmarks/gpu/copies.py --self-check    # anywhere: the emulated device in the GPU's place

A copy is launched behind long work in its stream (``torch.cuda._sleep``): if the call returns at once, the
CPU did not wait, whatever anyone says of it. Beside that stand what torch's debug mode warns of and what is
predicted on the emulated device, which does not sleep. A copy from pageable memory that is not to block can
return before the work is done and still be staged by the CPU: its time without work in front tells that.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from typing import Any

import _experiment
import _seen
import _sheet
import torch
from _experiment import Results

CYCLES = 20_000_000
"""About ten milliseconds: far more than any of the copies takes to be launched, or a small one to end."""
STOOD = 0.5
"""A call that takes this share of the sleep has waited for it."""
AWAKE = 0.005
"""Seconds; a device that sleeps less does not sleep, which tells nothing."""
SIZES = {"4 B": 1, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "64 MiB": 1 << 24}
SHORT_SIZES = ("64 KiB", "64 MiB")
DIRECTIONS = ("h2d", "d2h", "d2d")
MEMORIES = ("pageable", "pinned")
STRIDES = ("contiguous", "transposed", "converted")
STREAMS = ("default", "side")


def names() -> list[str]:
    """Return the names of all copies: ``h2d pageable blocking contiguous default 4 B``."""
    copy_names = []
    for direction, memory, blocking, stride, stream in itertools.product(
        DIRECTIONS, MEMORIES, ("blocking", "non-blocking"), STRIDES, STREAMS
    ):
        if direction != "d2d" or memory == "pageable":
            memory = "device" if direction == "d2d" else memory
            copy_names.append(f"{direction} {memory} {blocking} {stride} {stream}")
    return copy_names


def tensors(direction: str, memory: str, stride: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a source and a target of `count` numbers each."""

    def tensor_on(on_device: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if on_device:
            return torch.ones(count, device="cuda", dtype=dtype)
        plain = torch.ones(count, dtype=dtype)
        return plain.pin_memory() if memory == "pinned" else plain

    source, target = tensor_on(direction[0] == "d"), tensor_on(direction[2] == "d")
    if stride == "converted":
        source = tensor_on(direction[0] == "d", torch.float64)
    if stride == "transposed" and count > 1:
        return source.view(-1, 128).t(), target.view(128, -1)
    return source, target


def measure_copy(name: str, size: str, emulated: bool) -> Results:
    direction, memory, blocking, stride, stream = name.split(" ")
    source, target = tensors(direction, memory, stride, SIZES[size])
    side = torch.cuda.Stream() if stream == "side" else torch.cuda.current_stream()

    def copy() -> None:
        target.copy_(source, non_blocking=blocking == "non-blocking")

    with torch.cuda.stream(side):
        for _ in range(2):
            copy()
        torch.cuda.synchronize()
        warned = _seen.count_waits(copy)
        slept, behind, alone, done = [], [], [], []
        for _ in range(1 if emulated else 3):
            torch.cuda.synchronize()
            slept.append(seconds(lambda: (torch.cuda._sleep(CYCLES), torch.cuda.synchronize())))
            torch.cuda._sleep(CYCLES)
            behind.append(seconds(copy))
            torch.cuda.synchronize()
            alone.append(seconds(copy))
            torch.cuda.synchronize()
            done.append(seconds(lambda: (copy(), torch.cuda.synchronize())))
    asleep = statistics.median(slept)
    return {
        "warned": warned,
        "stood": None if asleep < AWAKE else statistics.median(behind) > STOOD * asleep,
        "alone": 1e6 * statistics.median(alone),
        "rate": source.nbytes / statistics.median(done) / 1e9,
    }


def seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def part(name: str, emulated: bool) -> Any:
    """Measure every copy of one size; "predicted" on the emulated device."""
    way, _, size = name.partition(" ")
    measurements: Results = {}
    with _experiment.device(emulated or way == "predicted"):
        for copy_name in names():
            try:
                measurements[copy_name] = measure_copy(copy_name, size, emulated or way == "predicted")
            except RuntimeError as error:
                measurements[copy_name] = {"failed": str(error)[:120]}
    return measurements


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    agreed = debug = total = 0
    for size in SIZES:
        real, said = results.get(f"measured {size}"), results.get(f"predicted {size}")
        if real is None or said is None:
            continue
        for name, real_copy in real.items():
            other = said[name]
            if "failed" in real_copy or "failed" in other:
                rows.append(
                    [*name.split(" "), size, real_copy.get("failed", ""), other.get("failed", ""), *[""] * 3]
                )
                wrong.append(f"{name} {size} failed")
                continue
            total += 1
            agreed += real_copy["stood"] is bool(other["warned"])
            debug += real_copy["warned"] == other["warned"]
            answer = {None: "not asked", True: "waits", False: "goes on"}[real_copy["stood"]]
            cells = [
                answer,
                real_copy["warned"],
                other["warned"],
                f"{real_copy['alone']:.1f}",
                f"{real_copy['rate']:.2f}",
            ]
            rows.append([*name.split(" "), size, *cells])
            by_clock = real_copy["stood"] is not None  # debug mode misses copies that are asked not to block
            if (
                real_copy["stood"] != bool(other["warned"])
                if by_clock
                else real_copy["warned"] != other["warned"]
            ):
                wrong.append(f"{name} {size}: {answer}, {real_copy['warned']} and {other['warned']}")
    columns = [
        "direction",
        "memory",
        "asked",
        "elements",
        "stream",
        "size",
        "the CPU",
        "debug mode",
        "predicted",
    ]
    text = f"{agreed} of {total} copies wait as predicted; debug mode agrees on {debug}.\n\n"
    return text + _sheet.table([*columns, "µs of the call", "GB/s"], rows), wrong


def script() -> _experiment.Script:
    sizes = SHORT_SIZES if _experiment.SHORT else list(SIZES)
    sizes = sizes[:2] if _experiment.SELF_CHECK else sizes
    return _experiment.Script(
        __doc__, __file__, "Copies",
        f"each behind {CYCLES:,} cycles of sleep in its stream; no managed memory: torch makes none",
        part, sheet, [f"predicted {size}" for size in sizes], [f"measured {size}" for size in sizes], 90,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
