"""Profiles with recorded shapes as rows of the tables that `kernel_times.py` reads.

    python benchmarks/kernel_rows.py OUT_kernels.csv.gz PROFILE...

Each operator whose kernels and shapes the profile holds is a row: the GPU, the family, the operator,
the type, the sizes as in the open tables, and the median of its kernels' microseconds in a call. Operators of
other families, and of shapes that the columns do not tell, are left out and counted. A profile is made so:

    with torch.profiler.profile(record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace("trace.json.gz")

Rows of a GPU that is not in `_kernel_tables.GPUS` need a line there.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from _kernel_tables import GPUS
from _operators import samples

from gapless.analyze.kernel_times.families import ATTENTION, CONVOLUTION, MATMUL, stem_of
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.programme import Entry
from gapless.trace.read import read

COLUMNS = ("gpu", "family", "op", "dtype", "dims", "us", "kernel", "grid", "source")
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MEMORY = {"native_layer_norm": "ln", "_softmax": "softmax", "embedding": "embedding"}
ELEMENTWISE = ("add", "mul", "div", "pow", "relu", "gelu", "tanh")


def describe(entry: Entry) -> tuple[str, str, tuple[int, ...]] | None:
    """Return the family, operator and sizes of a row; None if the tables have no such row."""
    request, stem = work(entry), stem_of(entry.name).rstrip("_")
    if entry.dtype not in TYPES:
        return None
    if request.family == MATMUL and len(request.products) == 1:
        op = "bmm" if "bmm" in stem else "linear" if stem in ("addmm", "linear") else "mm"
        return MATMUL, op, request.products[0]
    if request.family == CONVOLUTION and "backward" not in stem:
        return _convolution(entry)
    if request.family == ATTENTION and request.causal and not request.backward_passes:
        batch, heads, length, size = entry.inputs[0]
        return ATTENTION, "flash_causal_fw", (batch, length, heads, entry.inputs[1][1], size)
    shape = entry.outputs[0] if entry.outputs else ()
    if not shape or not math.prod(shape):
        return None
    sizes = (math.prod(shape[:-1]), shape[-1])
    if stem in MEMORY or entry.name.endswith("::_softmax"):
        return request.family, MEMORY.get(stem, "softmax"), sizes
    if stem in ELEMENTWISE and all(sizes_in in ((), shape) for sizes_in in entry.inputs):
        alone = sum(sizes_in == shape for sizes_in in entry.inputs) == 1 and stem in (
            "add",
            "mul",
            "div",
            "pow",
        )
        return "pointwise", stem + "u" * alone, sizes
    return None


def _convolution(entry: Entry) -> tuple[str, str, tuple[int, ...]] | None:
    """Describe a square convolution without groups whose stride and padding follow from its sides; else
    None."""
    source, weight = entry.inputs[:2]
    output = entry.outputs[0] if entry.outputs else ()
    if len(source) != 4 or len(output) != 4 or source[1] != weight[1]:
        return None
    side, window, out = source[2], weight[2], output[2]
    if source[3] != side or weight[3] != window or output[3] != out:
        return None
    for stride, padding in ((1, window // 2), (1, 0), (2, window // 2), (window, 0)):
        if (side + 2 * padding - window) // stride + 1 == out:
            return CONVOLUTION, "conv", (source[0], source[1], weight[0], window, side, stride, padding)
    return None


def rows(path: Path) -> tuple[list[list[object]], int]:
    """Return the rows of one profile, and the number of operators without a row."""
    timeline = read(path)
    name = timeline.facts.gpus[0].name if timeline.facts.gpus else "unknown"
    gpu = next((table for table, card in GPUS.items() if card.name == name), name)
    times: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    left = 0
    for sample in samples(path):
        description = describe(sample.entry)
        if description is None or sample.device <= 0:
            left += 1
            continue
        family, op, sizes = description
        times[family, op, TYPES[sample.entry.dtype], "x".join(map(str, sizes))].append(sample.device / 1e3)
    origin = f"profile/{path.name.split('.')[0]}"
    return [[gpu, *key, round(statistics.median(us), 3), "", "", origin] for key, us in times.items()], left


def all_rows(paths: Sequence[Path]) -> Iterator[list[object]]:
    for path in paths:
        profile_rows, left = rows(path)
        print(f"{path.name}: {len(profile_rows)} rows; {left} operators that the tables have no row for")
        yield from profile_rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("profiles", type=Path, nargs="+")
    options = parser.parse_args()
    with gzip.open(options.out, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(all_rows(options.profiles))


if __name__ == "__main__":
    main()
