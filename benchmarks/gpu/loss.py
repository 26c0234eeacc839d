"""A masked loss at the article's size, stage by stage, on a GPU.

    python benchmarks/gpu/loss.py                 # on a machine with a GPU: writes loss.md
    python benchmarks/gpu/loss.py --self-check    # anywhere: tiny, on the CPU

The experiment is that of benchmarks/masked_loss.py, which says what the stages are.
"""

from __future__ import annotations

import sys

import _experiment
import _stage_script
import masked_loss


def script() -> _experiment.Script:
    return _stage_script.stage_script(__doc__, __file__, masked_loss, [6, 4, 3, 0, 0, 0])


if __name__ == "__main__":
    sys.exit(script().main())
