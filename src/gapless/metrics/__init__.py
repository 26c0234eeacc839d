"""Metrics that never make the host wait: TorchMetrics' names, arguments and results."""

from __future__ import annotations

from gapless.metrics import paths, rooms
from gapless.metrics.aggregation import CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from gapless.metrics.batch import Batch
from gapless.metrics.classification import *  # noqa: F403
from gapless.metrics.collection import MetricCollection
from gapless.metrics.compatibility import accepted
from gapless.metrics.compatibility.checkpoints import torchmetrics_states
from gapless.metrics.composition import CompositionalMetric as CompositionalMetric
from gapless.metrics.core import Core
from gapless.metrics.detection import *  # noqa: F403
from gapless.metrics.faults import strict
from gapless.metrics.fusing import fused
from gapless.metrics.image import *  # noqa: F403
from gapless.metrics.merging import merge_states
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import Every, Sum
from gapless.metrics.regression import *  # noqa: F403
from gapless.metrics.retrieval import *  # noqa: F403
from gapless.metrics.segmentation import *  # noqa: F403
from gapless.metrics.statistic import Slot, Statistic
from gapless.metrics.text import *  # noqa: F403
from gapless.metrics.training import StepTime, Throughput
from gapless.metrics.wrappers import *  # noqa: F403
from gapless.transfer import Reading

__all__ = [
    "Batch",
    "CatMetric",
    "Core",
    "Every",
    "MaxMetric",
    "MeanMetric",
    "Metric",
    "MetricCollection",
    "MinMetric",
    "Reading",
    "Slot",
    "Statistic",
    "StepTime",
    "Sum",
    "SumMetric",
    "Throughput",
    "fused",
    "merge_states",
    "strict",
    "torchmetrics_states",
    *(name for room in rooms.ROOMS for name in rooms.metrics_of(room)),
]

paths.install()
accepted.install()
