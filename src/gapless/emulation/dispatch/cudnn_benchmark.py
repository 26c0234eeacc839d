"""Note convolution shapes that cuDNN benchmarks while ``torch.backends.cudnn.benchmark`` is on.

Profiles of real GPUs show it: the first convolution of a shape waits for an event per algorithm tried
(``cudaEventSynchronize``), and so does its first gradient.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from gapless.emulation.dispatch.operators import OperatorMode, handles
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.model.source import places, user_line
from gapless.model.wording import count


@handles("aten::convolution")
def _convolution(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    settings = torch.backends.cudnn
    if settings.benchmark and settings.enabled and mode.on_device(args[0]) and not local.quiet:
        tensor, weight, _, *options = args
        key = (tensor.shape, weight.shape, tensor.dtype, tensor.stride(), repr(options), repr(kwargs))
        recorder = mode.core.recorder
        if key not in recorder.tried:
            recorder.tried[key] = (user_line(stacks.resolve(stacks.capture())), recorder.tick)
    return mode.placed(mode.of(func), args, kwargs)


def notes(recorder: WaitRecorder) -> list[str]:
    """Return the report's note on benchmarked shapes; [] if there are none."""
    if not recorder.tried:
        return []
    lines = list(dict.fromkeys(line for line, _ in recorder.tried.values() if line is not None))
    at = f" at {places(lines, os.path.basename)}" if lines else ""
    last = max(tick for _, tick in recorder.tried.values())
    until = f", the last of them in step {last + 1}" if last else ""
    return [
        "torch.backends.cudnn.benchmark is on: the first convolution of each new shape, and its first "
        f"gradient, sync while cuDNN tries its algorithms; {count(len(recorder.tried), 'shape')}{at}{until}"
    ]
