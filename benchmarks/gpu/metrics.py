"""Metrics in a training step of ResNet-18 at the article's size, stage by stage, on a GPU.

    python benchmarks/gpu/metrics.py                 # on a machine with a GPU: writes metrics.md
    python benchmarks/gpu/metrics.py --self-check    # anywhere: tiny, on the CPU

The experiment is that of benchmarks/metric_overhead.py, which says what the stages are.
"""

from __future__ import annotations

import sys

import _experiment
import _stage_script
import metric_overhead


def script() -> _experiment.Script:
    return _stage_script.stage_script(__doc__, __file__, metric_overhead, [0, 3, 2, 0, 0, 0, 0, 0])


if __name__ == "__main__":
    sys.exit(script().main())
