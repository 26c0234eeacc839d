"""Compute results of many small steps that read values on the host, from one copy of the states.

On the device each step is a kernel and each read a wait; TorchMetrics' own code on host copies gives the same
values with a single wait. Only for metrics with small states, or whose steps run query by query.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from gapless.metrics.packing import form_of, pack, unpack
from gapless.metrics.torchmetrics._relink import in_library
from gapless.trees import map_tensors

HOST_NOTE = "runs on the CPU, from one copy of the states: one sync in total"

COMPUTED_ON_HOST: dict[str, tuple[str, ...]] = {
    "retrieval.base": ("RetrievalMetric",),
    "retrieval.fall_out": ("RetrievalFallOut",),
    "retrieval.precision_recall_curve": (
        "RetrievalPrecisionRecallCurve",
        "RetrievalRecallAtFixedPrecision",
    ),
    "classification.group_fairness": ("BinaryFairness",),
    "classification.matthews_corrcoef": ("BinaryMatthewsCorrCoef", "MultilabelMatthewsCorrCoef"),
    "clustering.adjusted_mutual_info_score": ("AdjustedMutualInfoScore",),
    "clustering.adjusted_rand_score": ("AdjustedRandScore",),
    "clustering.fowlkes_mallows_index": ("FowlkesMallowsIndex",),
    "clustering.homogeneity_completeness_v_measure": (
        "HomogeneityScore",
        "CompletenessScore",
        "VMeasureScore",
    ),
    "clustering.mutual_info_score": ("MutualInfoScore",),
    "clustering.normalized_mutual_info_score": ("NormalizedMutualInfoScore",),
    "clustering.rand_score": ("RandScore",),
    "detection.panoptic_qualities": ("PanopticQuality", "ModifiedPanopticQuality"),
    "nominal.cramers": ("CramersV",),
    "nominal.pearson": ("PearsonsContingencyCoefficient",),
    "nominal.theils_u": ("TheilsU",),
    "nominal.tschuprows": ("TschuprowsT",),
    "text.bleu": ("BLEUScore",),
    "text.chrf": ("CHRFScore",),
    "text.ter": ("TranslationEditRate",),
}
"""Classes whose own `compute` is run in this way, by module of `torchmetrics`."""


def is_computed_on_host(cls: type) -> bool:
    """Whether the `compute` that `cls` itself defines is run on the host."""
    names = COMPUTED_ON_HOST.get(cls.__module__.removeprefix("torchmetrics."), ())
    return cls.__name__ in names and "compute" in vars(cls)


def compute_on_host(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method `compute` to run on host copies of the metric's tensors and return device tensors."""

    @functools.wraps(compute)
    def call(self: Metric) -> Any:
        device = self.device
        if device.type != "cuda" or not _runs_only_library_code(self) or not _can_be_copied(self):
            return compute(self)
        with _move_to_host(self):
            value = compute(self)
        return _send_to_device(value, device)

    return call


def _runs_only_library_code(metric: Metric) -> bool:
    """Whether no user code is called in `compute`: it may rely on where tensors are."""
    own = getattr(type(metric), "_metric", None)
    return (own is None or in_library(own.__module__)) and not callable(getattr(metric, "aggregation", None))


def _tensors(metric: Metric) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where the metric keeps tensors and lists of tensors: the dict and the name in it."""
    for home in (metric.__dict__, metric._buffers):
        for name, value in home.items():
            held = value if isinstance(value, list) and value else [value]
            if not name.startswith("_") and all(isinstance(tensor, Tensor) for tensor in held):
                yield home, name


def _can_be_copied(metric: Metric) -> bool:
    """Whether no tensor needs gradients and there are no submodules with tensors of their own."""
    if metric._modules or metric._parameters:
        return False
    for home, name in _tensors(metric):
        held = home[name] if isinstance(home[name], list) else [home[name]]
        if any(tensor.requires_grad or tensor.layout != torch.strided for tensor in held):
            return False
    return True


@contextmanager
def _move_to_host(metric: Metric) -> Iterator[None]:
    """Inside the block the metric is on the host: one copy, and one wait for it."""
    kept = [(home, name, home[name]) for home, name in _tensors(metric)]
    flat = [tensor for _, _, value in kept for tensor in (value if isinstance(value, list) else [value])]
    copies = iter(_copy_to_host(flat))
    device = metric._device
    try:
        for home, name, value in kept:
            home[name] = [next(copies) for _ in value] if isinstance(value, list) else next(copies)
        metric._device = torch.device("cpu")
        yield
    finally:
        metric._device = device
        for home, name, value in kept:
            home[name] = value


def _copy_to_host(tensors: list[Tensor]) -> list[Tensor]:
    """Return `tensors` on the host, copied as bytes of one buffer."""
    away = [i for i, tensor in enumerate(tensors) if tensor.device.type != "cpu" and tensor.numel()]
    copies_or_tensors = [
        tensor if tensor.numel() else torch.empty_like(tensor, device="cpu") for tensor in tensors
    ]
    if away:
        several = [tensors[i] for i in away]
        copies = unpack(pack(several).cpu(), [form_of(tensor) for tensor in several])
        for i, copied in zip(away, copies, strict=True):
            copies_or_tensors[i] = copied
    return copies_or_tensors


def _send_to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on `device`, copied through pinned memory without waiting."""

    def send(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if tensor.dim() == 0:
            return torch.full((), tensor.item(), dtype=tensor.dtype, device=device)
        return tensor.pin_memory().to(device, non_blocking=True) if tensor.numel() else tensor.to(device)

    return map_tensors(value, send)
