"""Metrics in a training step of ResNet-18 at the article's size, stage by stage, on a GPU.

    python benchmarks/gpu/metrics.py                 # on a machine with a GPU: writes metrics.md and .json
    python benchmarks/gpu/metrics.py --self-check    # anywhere: tiny, and nothing is written

The experiment is that of benchmarks/metric_overhead.py, which says what the stages are.
"""

from __future__ import annotations

import sys

import _experiment
import metric_overhead

if __name__ == "__main__":
    sys.exit(_experiment.experiment(__doc__, metric_overhead, "metrics", [0, 3, 2, 0, 0, 0, 0, 0]))
