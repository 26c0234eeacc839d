"""What `benchmarks/device_classes.py` enumerates: all of the cheap classes, samples of the others."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.emulation.emulator import Emulator

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
pytestmark = pytest.mark.filterwarnings("ignore")

MIXED = re.compile(
    r"^(index_add|index_copy|index_fill|index_put|masked_scatter|mv|dist|put|cholesky_solve|block_diag|type_as"
    r"|diagonal_scatter|slice_scatter|segment_reduce|nextafter|tensor_split|add|where|cat|mm"
    r"|nn.functional.scaled_dot_product_attention)$"
)


@pytest.fixture(scope="module")
def classes() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("device_classes", BENCHMARKS / "device_classes.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_every_operator_that_cuda_alone_has_is_run_or_refused_by_name(classes: ModuleType) -> None:
    results = classes.list_operators()
    assert not results.unexplained
    assert results.counts["kernel"] > 50
    assert results.counts["refused"] <= len(classes._REFUSED)


def test_every_higher_order_operator_has_a_kernel_that_is_called(classes: ModuleType) -> None:
    results = classes.list_higher_order()
    assert not results.unexplained
    assert results.counts["kernel"] > 25


def test_idioms_are_where_the_table_says_and_wait_as_often(classes: ModuleType) -> None:
    assert not classes.compare_idioms().unexplained


def test_operators_asked_for_by_name_do_as_the_calls_that_are_made_of_them(classes: ModuleType) -> None:
    """``torch.ops.aten.to(c, 'cuda')`` as ``c.to('cuda')``: wherever ATen alone would decide in C++."""
    spelled = {}
    for idiom, expected in classes.IDIOMS.items():
        match = re.fullmatch(r"(\w)\.(\w+)\((.*)\)", idiom) or re.fullmatch(r"torch\.()(\w+)\((.*)\)", idiom)
        if match and match[2] in ("to", "cuda", "cpu", "type_as", "tensor", "as_tensor", "tensor_split"):
            arguments = ", ".join(filter(None, (match[1], match[3])))
            spelled[f"torch.ops.aten.{match[2]}({arguments})"] = expected
    overloads = {
        "torch.ops.aten.to.device(c, torch.device('cuda'), torch.half)": ("cuda:0", 1),
        "torch.ops.aten.to.device(p, torch.device('cuda'), torch.float, True, False, None)": ("cuda:0", 0),
        "torch.ops.aten.to.device(g, torch.device('cpu'), torch.float)": ("cpu", 1),
        "torch.ops.aten.to.dtype_layout(c, dtype=None, layout=None, device=torch.device('cuda'))": (
            "cuda:0",
            1,
        ),
        "torch.ops.aten.to.other(c, g)": ("cuda:0", 1),
        "torch.ops.aten.to.dtype(g, torch.half)": ("cuda:0", 0),
        "torch.ops.aten.type_as.default(c, g)": ("cuda:0", 1),
        "torch.ops.aten.one_hot.default(g.long())": ("cuda:0", 1),
        "torch.ops.aten.cov.default(g)": ("cuda:0", 1),
    }
    assert len(spelled) > 20
    with Emulator() as emulator:
        observed = {call: classes.observe(call, emulator) for call in (*spelled, *overloads)}
    assert observed == spelled | overloads


def test_arguments_on_several_devices(classes: ModuleType) -> None:
    if sys.platform != "linux":
        pytest.skip("the reference's device guard is put into libc10.so")
    entries = [op for op in op_db if MIXED.match(op.name)]
    results = classes.compare_devices([*entries, *op_db[:: len(op_db) // 20]])
    assert not results.unexplained
    assert results.counts["same"] > 50


def test_types_of_numbers_that_only_cuda_takes(classes: ModuleType) -> None:
    entries = [op for op in op_db if re.match(r"histc|nn.functional.multi_margin|fft.rfft$|cdist", op.name)]
    results = classes.try_types(entries)
    assert not results.unexplained
    assert results.counts["ran"] > 2


class Handing(TorchDispatchMode):
    """A mode of the script's own that only hands on, as profilers and selective checkpointing do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_of_the_scripts_own_changes_no_device() -> None:
    with Emulator() as emulator:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).cuda()
        before = emulator.recorder.total
        with Handing():
            out = model(torch.randn(2, 4, device="cuda")).half().float()
            (out.mean() + out.std()).backward()
        assert emulator.recorder.total == before
        assert {
            str(parameter.grad.device) for parameter in model.parameters() if parameter.grad is not None
        } == {"cuda:0"}
