"""Whole models of NeuSight's tables (MIT licence): their operators as entries, and what their runs took.

A run's operators were listed by tracing it: one transformer layer, which is there `layers` times, and what is
outside of it. An operator's backward pass is that of autograd for it.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gapless.model.programme import Entry, Shape


@dataclass(frozen=True)
class ListedOperator:
    """An operator of a model: how often it runs, its entries in each pass, and its microseconds."""

    kind: str
    times: int
    forward: tuple[Entry, ...]
    backward: tuple[Entry, ...]
    forward_us: float
    backward_us: float


@dataclass(frozen=True)
class ModelRun:
    """One fp32 run of a model, inference or training, and its microseconds."""

    gpu: str
    name: str
    trains: bool
    operators: tuple[ListedOperator, ...]
    forward_us: float
    backward_us: float

    @property
    def us(self) -> float:
        return self.forward_us + self.backward_us

    def entries(self) -> Iterator[tuple[Entry, int]]:
        for operator in self.operators:
            for entry in operator.forward + (operator.backward if self.trains else ()):
                yield entry, operator.times


def runs(folder: Path) -> list[ModelRun]:
    """Return the runs on a single GPU whose operators are listed, without mixtures of experts and
    compiled runs."""
    listed: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in _lines(folder / "neusight_model_ops.csv.gz"):
        listed.setdefault((line["gpu"], line["run"]), []).append(line)
    model_runs = []
    for line in _lines(folder / "neusight_e2e.csv.gz"):
        name = f"{line['model']}-{line['mode']}-{line['seq']}-{line['batch']}"
        lines = listed.get((line["gpu"], name))
        if lines is None or line["option"] or not line["layers"] or line["model"].startswith("switch"):
            continue
        trains, layers = line["mode"] == "train", int(float(line["layers"]))
        operators = tuple(_parse_operator(operator_line, layers, trains) for operator_line in lines)
        forward, backward = float(line["fw_us"]), float(line["bw_us"])
        model_runs.append(ModelRun(line["gpu"], name, trains, operators, forward, backward))
    return model_runs


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def _parse_operator(line: dict[str, str], layers: int, trains: bool) -> ListedOperator:
    inputs = [tuple(sizes) for sizes in json.loads(line["inputs"]) if sizes != [1]]
    output = tuple(int(digits) for digits in re.findall(r"\d+", line["output"]))
    kind = _kind(line["name"], line["target"])
    if kind == "dropout" and trains and not float(line["bw_us"]):
        kind = ""  # of probability 0, as in OPT's attention: the input is returned
    times = layers if line["in_layer"] == "1" else 1
    forward: tuple[Entry, ...] = ()
    backward: tuple[Entry, ...] = ()
    if kind and inputs and output != (1,):
        forward, backward = _passes(kind, inputs, output, trains)
    backward_us = float(line["bw_us"]) + float(line["acc_us"])
    return ListedOperator(kind, times, forward, backward, float(line["fw_us"]), backward_us)


_FUNCTIONS = {
    "add": "add", "sub": "add", "mul": "mul", "truediv": "mul", "pow": "pow", "tanh": "tanh", "gelu": "gelu",
    "relu": "relu", "where": "where", "masked_fill": "where", "max": "maximum", "softmax": "softmax",
    "dropout": "dropout", "matmul": "bmm", "bmm": "bmm", "addmm": "linear", "contiguous": "copy",
    "reshape": "copy", "embedding": "embedding",
}  # fmt: skip


def _kind(name: str, target: str) -> str:
    """Return the operator of a traced node; empty if it launches nothing."""
    if "." not in target and not target.startswith("lm_head"):
        return _FUNCTIONS.get(target.split()[-1], "")
    last = target.rsplit(".", 1)[-1].lower()
    if "norm" in last or last.startswith("ln_"):
        return "layer norm"
    if "drop" in last:
        return "dropout"
    if "embed" in last or last in ("wte", "wpe"):
        return "embedding"
    if "activation" in last:
        return "tanh" if "pooler" in target else "relu"
    return "linear"


def _fp32_entry(
    name: str, inputs: list[Shape], outputs: list[Shape], bytes_each: float = 0.0, **more: bool
) -> Entry:
    """Return an fp32 entry; `bytes_each` is traffic per output element where shapes do not say."""
    reads = 4 * sum(map(math.prod, inputs))
    writes = 4 * sum(map(math.prod, outputs))
    if bytes_each:
        reads = round(bytes_each * math.prod(outputs[0])) - writes
    return Entry(
        name=f"aten::{name}", dtype="float32", inputs=tuple(inputs), outputs=tuple(outputs),
        tensors=len(inputs), elements=sum(map(math.prod, inputs)), reads=reads, writes=writes, **more,
    )  # fmt: skip


def _passes(
    kind: str, inputs: list[Shape], output: Shape, trains: bool
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return what PyTorch launches for it, forward and backward."""
    if kind == "linear":
        return _linear(inputs, output)
    if kind == "bmm":
        a, b = inputs[:2]
        batch = math.prod(a[:-2])
        m, k, n = a[-2], a[-1], b[-1]
        first, second, product = (batch, m, k), (batch, k, n), (batch, m, n)
        to_first = _fp32_entry("bmm", [product, (batch, n, k)], [first], backward=True)
        to_second = _fp32_entry("bmm", [(batch, k, m), product], [second], backward=True)
        return (_fp32_entry("bmm", [first, second], [product]),), (to_first, to_second)
    if kind == "layer norm":
        side = output[-1]
        back = _fp32_entry(
            "native_layer_norm_backward", [output, output, (side,)], [output, (side,), (side,)], backward=True
        )
        return (_fp32_entry("native_layer_norm", [output, (side,), (side,)], [output]),), (back,)
    if kind == "softmax":
        back = _fp32_entry("_softmax_backward_data", [output, output], [output], backward=True)
        return (_fp32_entry("_softmax", [output], [output]),), (back,)
    if kind == "dropout":
        if not trains:
            return (), ()
        back = _fp32_entry("native_dropout_backward", [output, output], [output], 9, backward=True)
        return (_fp32_entry("native_dropout", [output], [output], 9),), (back,)
    if kind == "embedding":
        columns = output[-1]
        words = output if len(output) > 1 else (1, columns)
        back = _fp32_entry("embedding_dense_backward", [words], [(50_000, columns)], backward=True)
        return (_fp32_entry("embedding", [(50_000, columns), words[:-1]], [words]),), (back,)
    if kind == "copy":
        return (_fp32_entry("copy_", [output], [output]),), ()
    return (_fp32_entry(kind, inputs, [output]),), _pointwise_backward(kind, inputs, output)


def _linear(inputs: list[Shape], output: Shape) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    shape = next(candidate for candidate in inputs if len(candidate) > 1)
    rows, inner, columns = math.prod(shape[:-1]), shape[-1], output[-1]
    forward = _fp32_entry("addmm", [(columns,), (rows, inner), (inner, columns)], [(rows, columns)])
    back = (
        _fp32_entry("mm", [(rows, columns), (columns, inner)], [(rows, inner)], backward=True),
        _fp32_entry("mm", [(columns, rows), (rows, inner)], [(columns, inner)], backward=True),
        _fp32_entry("sum", [(rows, columns)], [(columns,)], backward=True),
        _fp32_entry(
            "add_", [(columns, inner), (columns, inner)], [(columns, inner)], backward=True
        ),  # to .grad
    )
    return (forward,), back


def _pointwise_backward(kind: str, inputs: list[Shape], output: Shape) -> tuple[Entry, ...]:
    two = len(inputs) > 1 and inputs[0] == inputs[1]
    times = _fp32_entry("mul", [output, output], [output], backward=True)
    by_number = _fp32_entry("mul", [output], [output], backward=True)
    if kind == "mul":
        return (times, times) if two else (by_number,)
    if kind == "pow":
        return (by_number, by_number, times)
    if kind == "where":
        return (by_number,)
    if kind == "maximum":
        return (by_number, by_number, times, times)
    if kind in ("gelu", "tanh", "relu"):
        name = {"relu": "threshold"}.get(kind, kind)
        return (_fp32_entry(f"{name}_backward", [output, output], [output], backward=True),)
    return ()
