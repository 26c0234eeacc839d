"""Convolutions that cuDNN tries its algorithms for: counted by shape, told with their lines."""

from __future__ import annotations

import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

F = torch.nn.functional


def _notes(emulator: Emulator) -> list[str]:
    return [note for note in emulator.session().notes if "cudnn.benchmark" in note]


def test_each_new_shape_is_counted_once() -> None:
    cudnn = torch.backends.cudnn
    with Emulator(EmulatorOptions("H100")) as emulator:
        weight = torch.ones(2, 3, 3, 3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)

        def step(size: int) -> None:
            F.conv2d(torch.ones(1, 3, size, size, device="cuda"), weight).sum().backward()
            optimizer.step()

        with cudnn.flags(enabled=True, benchmark=False):
            step(7)
        assert _notes(emulator) == []
        with cudnn.flags(enabled=True, benchmark=True):
            for size in (8, 8, 9, 8):
                step(size)
            F.conv2d(torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3))
            with torch.inference_mode():
                F.conv2d(torch.ones(1, 3, 8, 8, device="cuda"), weight, padding=1)
        total = emulator.recorder.total
        (note,) = _notes(emulator)
        assert "; 3 shapes at test_cudnn_benchmark.py:" in note
        assert note.endswith(", the last of them in step 6")
        with cudnn.flags(enabled=False, benchmark=True):
            step(11)
        assert (_notes(emulator), emulator.recorder.total) == ([note], total)
