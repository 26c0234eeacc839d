"""Count and score classes with Triton kernels: one for a batch, one for all scores of a collection."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gapless.metrics.batch import move_to_device
from gapless.metrics.mode import Mode

MAX_BINS = 2048
"""Classes, or pairs of classes, that a program can count in bins of its own."""
MAX_PROGRAMS = 256
"""Enough to occupy any GPU; more would only add bins to sum up."""
SCORE_FIELDS = 12
"""Length of a `ScoreRow`."""
WEIGHINGS = ("either", "actual", "support", "micro")
"""How classes can be weighted in an average, in the order of the codes that the kernel knows."""


class fused(Mode):  # noqa: N801  # used as a statement
    """Compute metrics of classes on a GPU with Triton kernels: about a fifth of the launches.

    Off by default: which way is faster has not been measured on a GPU yet. Values are the same, up to
    rounding. Applies from here on, or inside a ``with`` block; cases that the kernels do not support (see the
    page on metrics) and compiled functions run as before.

    >>> fused()  # doctest: +SKIP

    Args:
        mode: False to use torch's own operators again.

    Raises:
        ImportError: Triton is not installed.
    """

    def __init__(self, mode: bool = True) -> None:
        if mode and importlib.util.find_spec("triton") is None:
            raise ImportError("gapless.metrics.fused() needs Triton: pip install triton")
        super().__init__(mode)


def uses_kernels(device: torch.device) -> bool:
    """Whether data on `device` is counted by Triton kernels now."""
    return fused.on and device.type == "cuda" and not torch.compiler.is_compiling()


class Form:
    """A linear combination of counts: true positives, predictions, targets and all labels.

    >>> tp, predicted, _, _ = UNITS
    >>> (2 * tp - predicted).factors
    (2.0, -1.0, 0.0, 0.0)
    """

    __slots__ = ("factors",)

    def __init__(self, *factors: float) -> None:
        self.factors = factors

    def __add__(self, other: Form) -> Form:
        return Form(*(a + b for a, b in zip(self.factors, other.factors, strict=True)))

    def __sub__(self, other: Form) -> Form:
        return self + -1 * other

    def __rmul__(self, factor: float) -> Form:
        return Form(*(float(factor * count_factor) for count_factor in self.factors))


UNITS = tuple(Form(*(float(place == at) for at in range(4))) for place in range(4))
"""The four counts themselves, as combinations with one factor of 1."""
ScoreRow = tuple[float, ...]
"""A row of `score_classes`' input: factors of two forms, weighing, value for 0/0, complement flag, and
whether the average over no class is NaN.
"""


def score_row(
    over: Form, under: Form, weighing: str, otherwise: float, complement: bool, undefined: bool
) -> ScoreRow:
    """Return the row that describes a score to the kernel."""
    return (
        *over.factors,
        *under.factors,
        float(WEIGHINGS.index(weighing)),
        float(otherwise),
        float(complement),
        float(undefined),
    )


class ScoreRows:
    """The latest rows of scores, cached on the device."""

    def __init__(self) -> None:
        self._rows: tuple[ScoreRow, ...] = ()
        self._tensor: Tensor | None = None

    def on(self, device: torch.device, rows: tuple[ScoreRow, ...]) -> Tensor:
        if self._tensor is None or self._rows != rows or self._tensor.device != device:
            with torch.inference_mode(False):
                self._tensor = move_to_device(torch.tensor(rows, dtype=torch.float64, device="cpu"), device)
            self._rows = rows
        return self._tensor

    def __reduce__(self) -> Any:
        return ScoreRows, ()


def compute_scores(table: Tensor, cache: ScoreRows, rows: Sequence[ScoreRow]) -> dict[ScoreRow, Tensor]:
    """Return scores from a table of counts ``(3, classes + 3)``, one 0-dim tensor per row, in one launch."""
    from gapless.metrics import fused_kernels  # only where Triton is

    distinct = tuple(dict.fromkeys(rows))
    row_tensor = cache.on(table.device, distinct)
    out = torch.empty(len(distinct), dtype=torch.float32, device=table.device)
    classes = table.shape[1] - 3
    block_size = min(1024, next_power_of_two(classes))
    fused_kernels.score_classes[(len(distinct),)](
        table, row_tensor, out, table.shape[1], classes, FIELDS=SCORE_FIELDS, SOME=block_size
    )
    return dict(zip(distinct, out.unbind(), strict=True))


def compute_mean(totals: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mean of a state ``(3,)`` of `WeightedTotal`, in one launch."""
    from gapless.metrics import fused_kernels  # only where Triton is

    out = torch.empty((), dtype=dtype, device=totals.device)
    fused_kernels.compute_mean[(1,)](totals, out)
    return out


def add_value(value: Tensor, totals: Tensor, clean: Tensor, checked: bool, speck: float) -> None:
    """Add one value to a state of `WeightedTotal` and count updates without NaN in `clean`, in one launch."""
    from gapless.metrics import fused_kernels  # only where Triton is

    fused_kernels.add_value[(1,)](value, totals, clean, CHECKED=checked, SPECK=speck)
    increment_version([totals, clean])


def count_classes(
    table: Tensor,
    clean: Tensor | None,
    batch: tuple[Tensor, Tensor],
    classes: int,
    ignored: int | None,
    pairs: bool,
) -> bool:
    """Count predictions and targets into a table of `Classes`, or with `pairs` one of `ConfusionCounts`.

    Also counts updates without bad values in `clean`; two launches in all. Returns False, and counts nothing,
    for input that the kernels do not support: tables beyond `MAX_BINS`, scores without regular strides,
    targets that are not contiguous integers.
    """
    from gapless.metrics import fused_kernels  # only where Triton is

    preds, target = batch
    bins = next_power_of_two(classes * classes + 3 if pairs else classes + 4)
    labels, scored = target.numel(), preds.dim() == target.dim() + 1
    shape = score_strides(preds, classes) if scored else None
    plain = target.is_contiguous() and not _is_float(target)
    if bins > MAX_BINS or not labels or not plain or not table.is_contiguous():
        return False
    if shape is None and (scored or _is_float(preds) or not preds.is_contiguous()):
        return False
    steps = shape or (1, 0, 0, 0)
    rows = 1 if pairs else 3
    warps = 1 if labels < 1 << 14 else 4
    rows_per_block = 32 * warps
    # The programs' bins together take no more memory than the labels they count.
    programs = max(1, min(-(-labels // rows_per_block), MAX_PROGRAMS, labels * 8 // (bins * rows * 4)))
    block_counts = torch.empty(programs * rows * bins, dtype=torch.int32, device=table.device)
    fused_kernels.count_blocks[(programs,)](
        preds, target, block_counts, labels, *steps, 0 if ignored is None else ignored,
        CLASSES=classes, SCORES=scored, DOUBLE=preds.dtype == torch.float64, IGNORES=ignored is not None,
        PAIRS=pairs, ROWS=rows_per_block, SOME=min(64, next_power_of_two(classes)), BINS=bins,
        num_warps=warps,
    )  # fmt: skip
    width = table.numel() // rows
    edge, step, edges, checked = (classes * classes, 1, 1, 1) if pairs else (0, classes + 1, 2, 2)
    columns_per_block = min(256, bins)
    fused_kernels.add_blocks[(rows, -(-width // columns_per_block))](
        block_counts, table, table if clean is None else clean, programs, width, edge, step, edges,
        0 if clean is None else checked, TABLE_ROWS=rows, BINS=bins, SOME=columns_per_block,
    )  # fmt: skip
    increment_version([table] if clean is None else [table, clean])
    return True


def score_strides(preds: Tensor, classes: int) -> tuple[int, int, int, int] | None:
    """Return labels per sample and the strides of samples, classes and labels of scores ``(N, C, ...)``."""
    if preds.shape[1] != classes or not _is_float(preds):
        return None
    try:
        flat = preds.view(len(preds), classes, -1)
    except RuntimeError:
        return None
    return flat.shape[2], *flat.stride()  # type: ignore[return-value]


def _is_float(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def next_power_of_two(number: int) -> int:
    """Return the next power of two, at least 16 (the smallest block that Triton handles well)."""
    return 1 << max(4, (number - 1).bit_length())
