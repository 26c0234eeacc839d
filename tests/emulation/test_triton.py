"""Triton's launches on the emulated device: values, no wait, one entry in the programme, and what is said."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.support.patches import Patches
from gapless.emulation.triton import hooks
from gapless.emulation.triton.launches import TritonLaunches
from gapless.errors import NotEmulated

DOUBLED = """
module {
  tt.func public @doubled(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32) {
    %c16 = arith.constant 16 : i32
    %two = arith.constant dense<2.000000e+00> : tensor<16xf32>
    %pid = tt.get_program_id x : i32
    %s = arith.muli %pid, %c16 : i32
    %r = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %ss = tt.splat %s : i32 -> tensor<16xi32>
    %at = arith.addi %ss, %r : tensor<16xi32>
    %nn = tt.splat %n : i32 -> tensor<16xi32>
    %m = arith.cmpi slt, %at, %nn : tensor<16xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %xp = tt.addptr %xs, %at : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    %v = tt.load %xp, %m : tensor<16x!tt.ptr<f32>>
    %w = WHAT %v, %two : tensor<16xf32>
    %os = tt.splat %out : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %op = tt.addptr %os, %at : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    tt.store %op, %w, %m : tensor<16x!tt.ptr<f32>>
    tt.return
  }
}
"""
SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}


def compiled(operation: str = "arith.mulf") -> Any:
    """What Triton's launcher is given for such a kernel."""
    text = DOUBLED.replace("WHAT", operation)
    return SimpleNamespace(
        src=SimpleNamespace(signature=SIGNATURE, constants={(3,): 16}),
        asm={"ttir": text},
        hash=operation,
        name="doubled",
    )


def test_a_launch_computes_waits_for_nothing_and_is_one_entry() -> None:
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        launches = TritonLaunches(emulator.core)
        x = torch.arange(40.0, device="cuda")
        out = torch.empty_like(x)
        before = emulator.recorder.total
        for _ in range(2):
            launches.launch(compiled(), (3, 1, 1), (x, out, 40, 16))
        assert emulator.recorder.total == before
        emulator.recorder.mark("user", "step", depth=1)
        assert out.is_cuda
        assert torch.equal(out.cpu(), torch.arange(40.0) * 2)
        programme = emulator.session().programme
    assert programme is not None
    entries = [programme.entries[n] for n in programme.bodies[0]]
    (entry, again) = (candidate for candidate in entries if candidate.name.startswith("triton::"))
    assert entry == again
    assert (entry.name, entry.reads, entry.writes) == ("triton::doubled", 160, 160)
    assert (entry.inputs, entry.outputs, entry.dtype) == (((40,),), ((40,),), "float32")


def test_what_cannot_be_evaluated_is_zero_and_said_once() -> None:
    with Emulator() as emulator:
        launches = TritonLaunches(emulator.core)
        x, out = torch.ones(16, device="cuda"), torch.full((16,), 7.0, device="cuda")
        for _ in range(3):
            launches.launch(compiled("tt.unheard_of"), (1, 1, 1), (x, out, 16, 16))
        notes = [note for note in emulator.session().notes if "doubled" in note]
        assert out.cpu().eq(0).all()
        assert x.cpu().eq(1).all()
    assert len(notes) == 1
    assert "the operation tt.unheard_of is not evaluated" in notes[0]


def test_what_takes_too_long_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_KERNEL_BUDGET", "1000")
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        launches = TritonLaunches(emulator.core)
        x, out = torch.ones(4096, device="cuda"), torch.full((4096,), 7.0, device="cuda")
        launches.launch(compiled(), (256, 1, 1), (x, out, 4096, 16))
        emulator.recorder.mark("user", "step", depth=1)
        (note,) = (note for note in emulator.session().notes if "doubled" in note)
        programme = emulator.session().programme
        assert out.cpu().eq(0).all()
    assert "GAPLESS_KERNEL_BUDGET" in note
    assert programme is not None
    assert [entry.name for entry in programme.entries if "triton" in entry.name] == ["triton::doubled"]


def test_an_argument_on_the_host_is_refused_as_triton_does() -> None:
    with Emulator() as emulator:
        launches = TritonLaunches(emulator.core)
        x, out = torch.ones(16), torch.ones(16, device="cuda")
        with pytest.raises(ValueError, match=r"Pointer argument \(at 0\) cannot be accessed from Triton"):
            launches.launch(compiled(), (1, 1, 1), (x, out, 16, 16))
        launches.launch(compiled(), (1, 1, 1), (x.pin_memory(), out, 16, 16))
        launches.launch(compiled(), (1, 1, 1), (torch.empty(0), out, 0, 16))


def test_an_empty_grid_launches_nothing() -> None:
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        out = torch.ones(16, device="cuda")
        TritonLaunches(emulator.core).launch(compiled(), (0, 1, 1), (out, out, 16, 16))
        assert out.cpu().eq(1).all()


OLD = """
class JITFunction:
    __name__ = "add_kernel"
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)
    def run(self, *args, grid, **kwargs):
        raise RuntimeError("0 active drivers ([]). There should only be one.")
"""


@pytest.mark.parametrize("early", [True, False])
def test_a_triton_without_what_is_needed_is_refused(
    early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package with an old Triton's layout stands in for it."""
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "jit.py").write_text(OLD)
    (package / "autotuner.py").write_text("class Autotuner: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    patches = Patches()
    if early:
        importlib.import_module("triton.runtime.autotuner")
        importlib.import_module("triton.runtime.jit")
    with Emulator() as emulator:
        hooks.install(emulator.core, patches)
        importlib.import_module("triton.runtime.autotuner")
        kernel = importlib.import_module("triton.runtime.jit").JITFunction()
        with pytest.raises(
            NotEmulated, match=r"the Triton kernel `add_kernel`.*requested at.*pip install triton"
        ):
            kernel[(1,)](1)
        patches.undo()
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        sys.modules.pop(name)
