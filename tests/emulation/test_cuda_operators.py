"""What `benchmarks/cuda_operators.py` enumerates: all overloads, and one sample of each call or more."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from gapless.emulation import kernels
from gapless.emulation.dispatch import composites

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform != "linux", reason="the reference's device guard is put into libc10.so"),
]


@pytest.fixture(scope="module")
def enumerated() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("cuda_operators")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_every_overload_that_has_a_kernel_for_cuda_alone_is_handled_or_has_a_reason(
    enumerated: ModuleType,
) -> None:
    every = enumerated.overloads()
    assert not every.unexplained
    assert every.counts["one operator on both"] > 100
    assert every.counts["kernel"] > 50


def test_composites_with_a_kernel_for_cuda_go_its_way(enumerated: ModuleType) -> None:
    alone = enumerated.composites_with_kernel(cpu=False)
    assert set(alone) <= composites.PARTS.keys() & kernels.REPLACED
    assert ("_fused_rms_norm" in alone) is kernels.fuses_rms_norm()


def test_an_overload_without_a_reason_is_named(
    enumerated: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(composites.PARTS, "_fused_rms_norm")
    wanted = {"_fused_rms_norm"} if kernels.fuses_rms_norm() else set()
    assert set(enumerated.overloads().unexplained) == wanted


@pytest.mark.parametrize("part", range(3))
def test_calls_run_the_operators_that_torch_chooses_for_cuda(enumerated: ModuleType, part: int) -> None:
    """Every entry of ``op_db`` in float32, and functions and norms in bfloat16."""
    narrow = [op for op in op_db if op.name.startswith(("nn.functional.", "native_", "softmax", "log_soft"))]
    choices = enumerated.choices
    samples = [
        *choices.samples_of_operators(op_db[part::3], 1, (torch.float32,), (True,)),
        *choices.samples_of_operators(narrow[part::3], 1, (torch.bfloat16,), (True,)),
    ]
    comparison = enumerated.compare_choices(samples)
    assert not comparison.unexplained
    assert comparison.counts["same"] > 0.9 * len(samples)


def test_modules_and_samples_of_our_own_do_too(enumerated: ModuleType) -> None:
    choices = enumerated.choices
    samples = [*choices.own_samples(), *choices.samples_of_modules(1, (torch.float32, torch.float16))]
    comparison = enumerated.compare_choices(samples)
    assert not comparison.unexplained
    assert comparison.counts["same"] > 0.7 * len(samples)


def test_a_difference_without_a_reason_is_named(
    enumerated: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(composites.PARTS, "dropout")
    samples = list(
        enumerated.choices.samples_of_operators([op for op in op_db if op.name.endswith(".dropout")], 3)
    )
    choices = enumerated.compare_choices(samples)
    assert set(choices.unexplained) == {"nn.functional.dropout"}
    assert "native_dropout" in choices.unexplained["nn.functional.dropout"]
