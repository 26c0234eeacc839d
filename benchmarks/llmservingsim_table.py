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
"""Llama 3.1 8B's."""
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
LONG = 100.0
"""Microseconds from which on an activation is the sum of its passes over memory."""
NEW = "profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"
OLD = "profiler/v0/perf_models/{}/meta-llama/Llama-3.1-8B/tp1/layers.csv"
COLUMNS = ("gpu", "family", "op", "dtype", "dims", "us", "kernel", "grid", "source")
Made = tuple[str, str, str, str, str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    rows = list(table(asked.checkout))
    path = asked.folder / "llmservingsim_kernels.csv.gz"
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*row, "", "", "llmservingsim/Llama-3.1-8B") for row in rows)
    print(f"{path}: {len(rows)} rows")


def table(checkout: Path) -> Iterator[Made]:
    """The rows of all three cards; the older tables' at the newer one's numbers of tokens."""
    dense = read(checkout / NEW / "dense.csv")
    for one in dense:
        if one["layer"] in JOINED:
            yield product("RTX-4090", "bf16", one["layer"], one["tokens"], JOINED, float(one["time_us"]))
    for one in read(checkout / NEW / "per_sequence.csv"):
        if one["layer"] == "lm_head":
            yield product("RTX-4090", "bf16", "lm_head", one["sequences"], APART, float(one["time_us"]))
    for one in read(checkout / NEW / "attention.csv"):
        if one["kv_prefill"] == one["n_decode"] == one["kv_decode"] == "0":
            dims = f"1x{one['prefill_chunk']}x{HEADS}x{KEYS}x{HEAD}"
            yield "RTX-4090", "attention", "flash_causal_fw", "bf16", dims, float(one["time_us"])
    tokens = {one["tokens"] for one in dense}
    for folder, gpu in (("RTX3090", "RTX-3090"), ("A6000", "RTX-A6000")):
        for one in read(checkout / OLD.format(folder)):
            if one["input"] in tokens:
                yield from older(gpu, one)


def older(gpu: str, one: dict[str, str]) -> Iterator[Made]:
    """The row of one layer of the older tables, if it is of a kind that is estimated."""
    us, name, tokens = int(one["latency(ns)"]) / 1e3, one["layer_name"], int(one["input"])
    if name in APART:
        yield product(gpu, "fp16", name, str(tokens), APART, us)
    elif name == "embedding":
        yield gpu, "gather", "embedding", "fp16", f"{tokens}x{WIDTH}", us
    elif name == "act_fn" and us >= LONG:
        # SiLU and a product, two and three passes over as many numbers: those of a ReLU of 5/2 as many
        yield gpu, "pointwise", "relu", "fp16", f"{tokens}x{INNER * 5 // 2}", us


def product(
    gpu: str, dtype: str, layer: str, tokens: str, sizes: dict[str, tuple[int, int]], us: float
) -> Made:
    columns, depth = sizes[layer]
    return gpu, "matmul", layer, dtype, f"1x{tokens}x{columns}x{depth}", us


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
