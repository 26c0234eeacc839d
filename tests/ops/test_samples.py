"""What holds for every operation: the reference's values and gradients, one compilation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from ops.samples import SAMPLES, Inputs, Sample, gradients

from gapless import ops

ELSEWHERE = {
    "Bounded",
    "Distinct",
    "Reading",
    "LogBuffer",
    "clip_grad_norm_",
    "read_later",
    "step_if",
    "step_if_finite",
    "to_device",
}
"""Names with tests of their own."""

by_name = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def test_every_operation_has_a_sample() -> None:
    assert {sample.name.split(".")[0] for sample in SAMPLES} | ELSEWHERE == set(ops.__all__)


@by_name
@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_are_the_references(sample: Sample, seed: int) -> None:
    ours, theirs = Inputs(seed), Inputs(seed)
    actual, wanted = sample.cut(sample.ours(ours)), sample.theirs(theirs)
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    for a, b in zip(gradients(ours, actual), gradients(theirs, wanted), strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            *torch.broadcast_tensors(*(zero if g is None else g for g in (a, b))), check_dtype=False
        )


@by_name
def test_compiles_in_one_piece_and_once(sample: Sample) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(sample.ours, fullgraph=True, backend="eager")
        for seed in range(3):
            ours, plain = Inputs(seed), Inputs(seed)
            actual, wanted = compiled(ours), sample.ours(plain)
            torch.testing.assert_close(actual, wanted, equal_nan=True)
            for a, b in zip(gradients(ours, actual), gradients(plain, wanted), strict=True):
                torch.testing.assert_close(a, b)


@by_name
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_other_precisions(sample: Sample, dtype: torch.dtype) -> None:
    ours, theirs = Inputs(1, dtype=dtype), Inputs(1, dtype=dtype)
    try:
        wanted = sample.theirs(theirs)
    except RuntimeError as error:
        pytest.skip(f"the reference has no such kernel: {error}")
    actual = sample.cut(sample.ours(ours))
    exact = sample.name in ("unique", "histogram", "histc")
    torch.testing.assert_close(actual, wanted, **({} if exact else tolerance(dtype)))


def tolerance(dtype: torch.dtype) -> dict[str, Any]:
    return {torch.float16: {"rtol": 5e-3, "atol": 5e-3}, torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2}}.get(
        dtype, {}
    )


@by_name
def test_the_docstring_shows_what_is_replaced(sample: Sample) -> None:
    text = inspect.getdoc(getattr(ops, sample.name.split(".")[0])) or ""
    assert "Replaces::" in text
    assert "ops." in text.split("Replaces::")[1]


def test_names_are_loaded_when_they_are_used(plain_python: Any) -> None:
    code = (
        "import sys, gapless.ops as ops\n"
        "print('torch' in sys.modules, set(ops.__all__) <= set(dir(ops)))\n"
        "print(ops.unique.__name__, ops.assign.__name__)\n"
        "try:\n    ops.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    process = plain_python("-W", "error", "-c", code)
    assert process.stdout == (
        "False True\nunique assign\nmodule 'gapless.ops' has no attribute 'nothing'\n"
    ), process.stderr


def test_no_module_bears_a_public_name() -> None:
    assert not set(ops._HOMES) & set(ops.__all__)
    for name in ops.__all__:
        home = "gapless.transfer" if name == "Reading" else f"gapless.ops.{ops._MODULE_OF[name]}"
        assert getattr(ops, name).__module__ == home
