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


def described(entry: Entry) -> tuple[str, str, tuple[int, ...]] | None:
    """Family, operator and sizes of a row; None where the tables have no such row."""
    asked, stem = work(entry), stem_of(entry.name).rstrip("_")
    if entry.dtype not in TYPES:
        return None
    if asked.family == MATMUL and len(asked.products) == 1:
        op = "bmm" if "bmm" in stem else "linear" if stem in ("addmm", "linear") else "mm"
        return MATMUL, op, asked.products[0]
    if asked.family == CONVOLUTION and "backward" not in stem:
        return _convolution(entry)
    if asked.family == ATTENTION and asked.causal and not asked.backward:
        batch, heads, length, size = entry.inputs[0]
        return ATTENTION, "flash_causal_fw", (batch, length, heads, entry.inputs[1][1], size)
    shape = entry.outputs[0] if entry.outputs else ()
    if not shape or not math.prod(shape):
        return None
    sizes = (math.prod(shape[:-1]), shape[-1])
    if stem in MEMORY or entry.name.endswith("::_softmax"):
        return asked.family, MEMORY.get(stem, "softmax"), sizes
    if stem in ELEMENTWISE and all(one in ((), shape) for one in entry.inputs):
        alone = sum(one == shape for one in entry.inputs) == 1 and stem in ("add", "mul", "div", "pow")
        return "pointwise", stem + "u" * alone, sizes
    return None


def _convolution(entry: Entry) -> tuple[str, str, tuple[int, ...]] | None:
    """Square ones without groups, whose stride and padding follow from their sides."""
    source, weight = entry.inputs[:2]
    made = entry.outputs[0] if entry.outputs else ()
    if len(source) != 4 or len(made) != 4 or source[1] != weight[1]:
        return None
    side, window, out = source[2], weight[2], made[2]
    if source[3] != side or weight[3] != window or made[3] != out:
        return None
    for stride, padding in ((1, window // 2), (1, 0), (2, window // 2), (window, 0)):
        if (side + 2 * padding - window) // stride + 1 == out:
            return CONVOLUTION, "conv", (source[0], source[1], weight[0], window, side, stride, padding)
    return None


def rows(path: Path) -> tuple[list[list[object]], int]:
    """The rows of one profile, and how many operators have none."""
    timeline = read(path)
    name = timeline.facts.gpus[0].name if timeline.facts.gpus else "unknown"
    gpu = next((table for table, card in GPUS.items() if card.name == name), name)
    times: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    left = 0
    for one in samples(path):
        found = described(one.entry)
        if found is None or one.device <= 0:
            left += 1
            continue
        family, op, sizes = found
        times[family, op, TYPES[one.entry.dtype], "x".join(map(str, sizes))].append(one.device / 1e3)
    origin = f"profile/{path.name.split('.')[0]}"
    return [[gpu, *key, round(statistics.median(us), 3), "", "", origin] for key, us in times.items()], left


def written(paths: Sequence[Path]) -> Iterator[list[object]]:
    for path in paths:
        found, left = rows(path)
        print(f"{path.name}: {len(found)} rows; {left} operators that the tables have no row for")
        yield from found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("profiles", type=Path, nargs="+")
    asked = parser.parse_args()
    with gzip.open(asked.out, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(written(asked.profiles))


if __name__ == "__main__":
    main()
