"""What a real GPU did in calls of torch's operator catalogue, beside what the emulated device predicts."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from gapless.emulation.emulator import Emulator
from gapless.torch_internals import VERSION

MEASURED = Path(__file__).with_name("measured_h200.tsv")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LIBRARY = "the clock sees a wait that debug mode does not: assumed to be inside MAGMA or Thrust"
VALUES = "assumed: how often depends on values, which were others"
BACKWARD = "assumed: the backward pass of an operator that is made of others"
UNEXPLAINED = "the reason of further waits was not found in the source"
ACCEPTED = {
    "cumprod function float32 #1": VALUES,
    "histc function float32 #0": "agrees with the samples of torch 2.11",
    "linalg.eig function float32 #0": UNEXPLAINED,
    "linalg.eig function float32 #1": UNEXPLAINED,
    "linalg.eigvals function float32 #0": UNEXPLAINED,
    "linalg.eigvals function float32 #1": UNEXPLAINED,
    "linalg.lu function float32 #0": LIBRARY,
    "linalg.vander function float32 #1": BACKWARD,
    "lu function float32 #0": LIBRARY,
    "lu function float32 #1": LIBRARY,
    "matrix_exp function float32 #0": VALUES,
    "mode function float32 #1": LIBRARY,
    "nn.functional.ctc_loss function float32 #0": UNEXPLAINED,
    "nn.functional.ctc_loss function float32 #1": UNEXPLAINED,
    "sparse.sampled_addmm function float32 #1": BACKWARD,
    "unique_consecutive function float32 #1": LIBRARY,
}
"""Calls that differ, with the reason, or what it is assumed to be; the list may only shrink."""


@pytest.fixture(scope="module")
def catalogue() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("op_db")
    finally:
        sys.path.remove(str(BENCHMARKS))


def count_waits(catalogue: Any, emulator: Emulator, case: Any) -> int:
    """Return the waits of a call and of its backward pass on the emulated device."""
    sample = case.sample
    inputs = [catalogue.copy_to(value, "cuda") for value in (sample.input, *sample.args)]
    options = catalogue.copy_to(sample.kwargs, "cuda")
    before = emulator.recorder.total
    out = catalogue.callable_of(case)(*inputs, **options)
    if catalogue._differentiable(case):
        catalogue.backward(sample.output_process_fn_grad(out))
    return emulator.recorder.total - before


@pytest.mark.skipif(VERSION[:2] != (2, 13), reason="each version has samples of its own")
def test_calls_wait_as_often_as_on_a_real_gpu(catalogue: Any) -> None:
    rows = [line.split("\t") for line in MEASURED.read_text().splitlines() if not line.startswith("#")][1:]
    measured = {name: (int(debug), clock) for name, debug, clock in rows}
    words = [name.partition(" ")[0].split(".") for name in measured]
    operators = {".".join(parts[:end]) for parts in words for end in range(1, len(parts) + 1)}
    different, compared = set(), 0
    with warnings.catch_warnings(), Emulator() as emulator:
        warnings.simplefilter("ignore")
        for entry in catalogue.op_db:
            if entry.name not in operators:
                continue
            for case in catalogue.cases(entry, 2):
                name = str(case)
                if name not in measured:
                    continue
                debug, clock = measured.pop(name)
                compared += 1
                waits = count_waits(catalogue, emulator, case)
                if waits != debug or (clock != "-" and bool(waits) != (clock == "1")):
                    different.add(name)
    assert compared > 150
    assert different == set(ACCEPTED)
