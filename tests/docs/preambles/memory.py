"""What docs/memory.md takes for granted."""

import torch

from gapless.memory.recorder import Recorder  # noqa: F401

tensor = torch.ones(256)
nbytes = 1024
lines = ()
