"""Kernels compiled by Triton itself, where it is installed: autotuning, heuristics, descriptors, hooks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gapless

triton = pytest.importorskip("triton")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not here", allow_module_level=True)


def _harness() -> Any:
    """``benchmarks/kernels.py``, under a name that no folder of tests has."""
    spec = importlib.util.spec_from_file_location("kernels_benchmark", BENCHMARKS / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCHMARKS))
    spec.loader.exec_module(module)
    return module


harness = _harness()
tutorials = importlib.import_module("kernel_cases.tutorials")
for _ in range(2):  # the benchmark puts its own folder there, too
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("case", tutorials.CASES, ids=lambda case: case.name)
def test_kernels_compute_what_torch_does_and_never_wait(case: Any) -> None:
    outcome = harness.try_case(case)
    assert outcome.is_good, harness.result_line(outcome)
    assert outcome.launched
    assert outcome.waits == (4 if "by address" in case.name else 0)


def test_descriptors_where_the_gpu_has_them() -> None:
    with gapless.emulate("H100"):
        a, b = torch.randn(50, 64), torch.randn(40, 64)
        results = tutorials.products.described_matmul(type("X", (), {"a": a.cuda(), "b": b.cuda()})).cpu()
    torch.testing.assert_close(results, a @ b.T, rtol=1e-4, atol=1e-4)


def test_hooks_are_called_around_a_launch() -> None:
    runtime = triton.knobs.runtime
    emulation: list[str] = []

    def enter(metadata: Any) -> None:
        emulation.append("enter " + metadata.get()["name"])

    def leave(metadata: Any) -> None:
        emulation.append("leave")

    before: list[Any] = []
    tutorials.elements.scale_kernel.add_pre_run_hook(lambda *args, **kwargs: before.append(kwargs["BLOCK"]))
    runtime.launch_enter_hook.add(enter)
    runtime.launch_exit_hook.add(leave)
    try:
        with gapless.emulate():
            tutorials.elements.scaled(torch.ones(4, device="cuda"), 2.0)
    finally:
        runtime.launch_enter_hook.remove(enter)
        runtime.launch_exit_hook.remove(leave)
        tutorials.elements.scale_kernel.pre_run_hooks.clear()
    assert emulation == ["enter scale_kernel", "leave"]
    assert before == [128]


def test_tuning_leaves_nothing_behind() -> None:
    tuner = tutorials.products.matmul_kernel
    with gapless.emulate() as emulation:
        x = type("X", (), {"a": torch.ones(8, 32, device="cuda"), "b": torch.ones(32, 8, device="cuda")})
        tutorials.products.matmul(x)
        assert tuner.cache
    assert not tuner.cache
    assert any("autotuner" in note for note in emulation.session.notes)
    with pytest.raises(RuntimeError, match="active drivers"):
        tutorials.products.matmul(x)


def test_a_benchmark_ends_and_waits_as_on_a_gpu() -> None:
    from triton.testing import do_bench

    with gapless.emulate() as emulation:
        x = torch.ones(64, device="cuda")
        before = emulation.waits
        assert do_bench(lambda: tutorials.elements.scaled(x, 2.0), warmup=1, rep=2) > 0
        assert emulation.waits > before
