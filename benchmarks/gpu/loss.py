"""A masked loss at the article's size, stage by stage, on a GPU.

    python benchmarks/gpu/loss.py                 # on a machine with a GPU: writes loss.md and loss.json
    python benchmarks/gpu/loss.py --self-check    # anywhere: tiny, and nothing is written

The experiment is that of benchmarks/masked_loss.py, which says what the stages are.
"""

from __future__ import annotations

import sys

import _experiment
import masked_loss

if __name__ == "__main__":
    sys.exit(_experiment.experiment(__doc__, masked_loss, "loss", [6, 4, 3, 0, 0, 0]))
