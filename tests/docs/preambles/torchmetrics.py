"""What docs/torchmetrics.md takes for granted."""

from torchmetrics import MeanMetric, MetricCollection  # noqa: F401
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score  # noqa: F401

device = "cuda"
