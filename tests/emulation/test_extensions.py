"""CUDA extensions: there, and refusing when they are called, unless the user gives something."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.errors import NotEmulated


@pytest.fixture
def builder() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("torch.utils.cpp_extension")


def test_one_that_would_be_built_refuses_when_it_is_called(builder: Any) -> None:
    with gapless.emulate():
        loaded = builder.load("fused", ["fused.cpp", "fused_kernel.cu"])
        inline = builder.load_inline(name="inline", cpp_sources="", cuda_sources="__global__ void f() {}")
        paths = builder.load("paths", [Path("kernel.cu")])
        assert hasattr(loaded, "forward")
        assert loaded.__name__ == "fused"
        for module in (loaded, inline, paths):
            with pytest.raises(NotEmulated) as caught:
                module.forward(torch.ones(1, device="cuda"))
            said = str(caught.value)
            for part in (f"`{module.__name__}.forward`", "gapless.standin", __file__):
                assert part in said
            assert "\n" not in said
        with pytest.raises(NotEmulated, match="the CUDA extension `fused`"):
            builder.CUDAExtension("fused", ["fused.cpp"])
    assert "Gapless" not in repr(builder.load)


def test_a_user_gives_its_functions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = importlib.import_module("torch.utils.cpp_extension")

    @gapless.standin("given_ext.double")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x * float(x.sum()) ** 0

    with Emulator(EmulatorOptions(programme=True)) as emulator:
        module = builder.load("given_ext", ["a.cu"])
        x = torch.ones(2, device="cuda")
        programme = emulator.recorder.programme
        assert programme is not None
        begin, waits = programme.position, emulator.recorder.total
        assert module.double(x).is_cuda
        assert [entry.name for entry in programme.entries_since(begin)] == ["given_ext::double"]
        assert emulator.recorder.total == waits


def test_operators_it_would_have_defined_refuse_too(builder: Any) -> None:
    with gapless.emulate():
        assert not hasattr(torch.ops.never_defined, "forward")
        assert not hasattr(torch.ops.aten, "never_defined")
        assert builder.load("never", ["ops.cu"], is_python_module=False) is None
        with pytest.raises(
            NotEmulated, match=r"never_defined::forward \(probably of the CUDA extension `never`"
        ):
            torch.ops.never_defined.forward(torch.ones(1, device="cuda"))
        assert not hasattr(torch.ops.aten, "never_defined")
    assert not hasattr(torch.ops.never_defined, "backward")


def test_one_that_misses_cudas_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled module is a file that the loader refuses; what it says is all there is to go by."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in ("needs_cuda", "broken"):
        (tmp_path / f"{name}{suffix}").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))

    def create(self: Any, spec: Any) -> Any:
        missing = "libcudart.so.12" if spec.name == "needs_cuda" else "libfoo.so"
        raise ImportError(f"{missing}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(importlib.machinery.ExtensionFileLoader, "create_module", create)
    with gapless.emulate():
        module = importlib.import_module("needs_cuda")
        with pytest.raises(NotEmulated, match=r"`needs_cuda\.forward`"):
            module.forward()
        with pytest.raises(ImportError, match="libfoo"):
            importlib.import_module("broken")
    sys.modules.pop("needs_cuda", None)
