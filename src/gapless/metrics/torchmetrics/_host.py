"""Results that are many small steps with a look at each: computed on the host, from one copy of the states.

On the device each such step is a kernel and each look a wait; TorchMetrics' own code on host copies gives the
same values with one wait in all. Only where states are small, or where the steps run query by query.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from gapless.metrics.packing import form_of, packed, unpacked
from gapless.metrics.torchmetrics._relink import in_library
from gapless.trees import mapped

SAYS = "runs on the CPU, from one copy of the states: one sync in total"

ON_HOST: dict[str, tuple[str, ...]] = {
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


def on_host(cls: type) -> bool:
    """Whether the `compute` that `cls` itself defines is run on the host."""
    names = ON_HOST.get(cls.__module__.removeprefix("torchmetrics."), ())
    return cls.__name__ in names and "compute" in vars(cls)


def from_host(compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute`, a method, run on host copies of the metric's tensors; its result goes back to the device."""

    @functools.wraps(compute)
    def call(self: Metric) -> Any:
        device = self.device
        if device.type != "cuda" or not _is_librarys_own(self) or not _can_be_copied(self):
            return compute(self)
        with _copied(self):
            value = compute(self)
        return _sent(value, device)

    return call


def _is_librarys_own(metric: Metric) -> bool:
    """Whether no code of the user's is called in between: it may rely on where tensors are."""
    own = getattr(type(metric), "_metric", None)
    return (own is None or in_library(own.__module__)) and not callable(getattr(metric, "aggregation", None))


def _tensors(metric: Metric) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the metric keeps tensors and lists of tensors: the dict and the name in it."""
    for home in (metric.__dict__, metric._buffers):
        for name, value in home.items():
            held = value if isinstance(value, list) and value else [value]
            if not name.startswith("_") and all(isinstance(one, Tensor) for one in held):
                yield home, name


def _can_be_copied(metric: Metric) -> bool:
    """Whether no gradient has to find its way through the result, and nothing has tensors of its own."""
    if metric._modules or metric._parameters:
        return False
    for home, name in _tensors(metric):
        held = home[name] if isinstance(home[name], list) else [home[name]]
        if any(one.requires_grad or one.layout != torch.strided for one in held):
            return False
    return True


@contextmanager
def _copied(metric: Metric) -> Iterator[None]:
    """Within this block the metric is on the host. One copy, and one wait for it."""
    kept = [(home, name, home[name]) for home, name in _tensors(metric)]
    flat = [one for _, _, value in kept for one in (value if isinstance(value, list) else [value])]
    copies = iter(_together(flat))
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


def _together(tensors: list[Tensor]) -> list[Tensor]:
    """`tensors` on the host, copied as bytes of one buffer."""
    away = [i for i, one in enumerate(tensors) if one.device.type != "cpu" and one.numel()]
    found = [one if one.numel() else torch.empty_like(one, device="cpu") for one in tensors]
    if away:
        several = [tensors[i] for i in away]
        copies = unpacked(packed(several).cpu(), [form_of(one) for one in several])
        for i, one in zip(away, copies, strict=True):
            found[i] = one
    return found


def _sent(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on `device`, sent through pinned memory: nothing waits for them."""

    def sent(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if tensor.dim() == 0:
            return torch.full((), tensor.item(), dtype=tensor.dtype, device=device)
        return tensor.pin_memory().to(device, non_blocking=True) if tensor.numel() else tensor.to(device)

    return mapped(value, sent)
