"""LLMServingSim's measured kernels (MIT) as a table for `kernel_times.py`.

    git clone https://github.com/casys-kaist/LLMServingSim && git -C LLMServingSim checkout 5daddb21
    python benchmarks/llmservingsim_table.py LLMServingSim FOLDER

writes FOLDER/llmservingsim_kernels.csv.gz: the layers of a Llama 3.1 8B on one RTX 4090 (bf16, those of vLLM)
and on one RTX 3090 and one RTX A6000 (fp16, those of torch), kernel times of a profiler.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

WIDTH, INNER, WORDS, HEADS, KEYS, HEAD = 4096, 14336, 128256, 32, 8, 128
"""Sizes of Llama 3.1 8B."""
JOINED = {
    "qkv_proj": (WIDTH + 2 * KEYS * HEAD, WIDTH),
    "o_proj": (WIDTH, WIDTH),
    "gate_up_proj": (2 * INNER, WIDTH),
    "down_proj": (WIDTH, INNER),
}
APART = {
    "q_proj": (WIDTH, WIDTH),
    "k_proj": (KEYS * HEAD, WIDTH),
    "o_proj": (WIDTH, WIDTH),
    "gate_proj": (INNER, WIDTH),
    "down_proj": (WIDTH, INNER),
    "lm_head": (WORDS, WIDTH),
}
"""Columns and depth of each layer's matrix product."""
MIN_ACTIVATION_US = 100.0
"""Microseconds; longer activations take the sum of their passes over memory."""
NEW = "profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"
OLD = "profiler/v0/perf_models/{}/meta-llama/Llama-3.1-8B/tp1/layers.csv"
COLUMNS = ("gpu", "family", "op", "dtype", "dims", "us", "kernel", "grid", "source")
TableRow = tuple[str, str, str, str, str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rows = list(table(options.checkout))
    path = options.folder / "llmservingsim_kernels.csv.gz"
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*row, "", "", "llmservingsim/Llama-3.1-8B") for row in rows)
    print(f"{path}: {len(rows)} rows")


def table(checkout: Path) -> Iterator[TableRow]:
    """Yield the rows of all three cards; the older tables' rows at the newer one's token counts."""
    dense = read(checkout / NEW / "dense.csv")
    for row in dense:
        if row["layer"] in JOINED:
            yield product_row("RTX-4090", "bf16", row["layer"], row["tokens"], JOINED, float(row["time_us"]))
    for row in read(checkout / NEW / "per_sequence.csv"):
        if row["layer"] == "lm_head":
            yield product_row("RTX-4090", "bf16", "lm_head", row["sequences"], APART, float(row["time_us"]))
    for row in read(checkout / NEW / "attention.csv"):
        if row["kv_prefill"] == row["n_decode"] == row["kv_decode"] == "0":
            dims = f"1x{row['prefill_chunk']}x{HEADS}x{KEYS}x{HEAD}"
            yield "RTX-4090", "attention", "flash_causal_fw", "bf16", dims, float(row["time_us"])
    tokens = {row["tokens"] for row in dense}
    for folder, gpu in (("RTX3090", "RTX-3090"), ("A6000", "RTX-A6000")):
        for row in read(checkout / OLD.format(folder)):
            if row["input"] in tokens:
                yield from older_row(gpu, row)


def older_row(gpu: str, row: dict[str, str]) -> Iterator[TableRow]:
    """Yield the row of a layer of the older tables, if its kind is estimated."""
    us, name, tokens = int(row["latency(ns)"]) / 1e3, row["layer_name"], int(row["input"])
    if name in APART:
        yield product_row(gpu, "fp16", name, str(tokens), APART, us)
    elif name == "embedding":
        yield gpu, "gather", "embedding", "fp16", f"{tokens}x{WIDTH}", us
    elif name == "act_fn" and us >= MIN_ACTIVATION_US:
        # SiLU and a product move two and three passes: as a ReLU over 5/2 as many elements
        yield gpu, "pointwise", "relu", "fp16", f"{tokens}x{INNER * 5 // 2}", us


def product_row(
    gpu: str, dtype: str, layer: str, tokens: str, sizes: dict[str, tuple[int, int]], us: float
) -> TableRow:
    columns, depth = sizes[layer]
    return gpu, "matmul", layer, dtype, f"1x{tokens}x{columns}x{depth}", us


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
