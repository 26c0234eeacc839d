"""Counting and scoring classes with Triton's kernels: one for a batch, one for all scores of a collection."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gapless.metrics.batch import moved
from gapless.metrics.mode import Mode

BINS = 2048
"""What a program counts by itself, at most: classes, or pairs of classes."""
PROGRAMS = 256
FIELDS = 12
WEIGHINGS = ("either", "actual", "support", "micro")


class fused(Mode):  # noqa: N801  # used as a statement
    """Let metrics of classes on a GPU run in kernels of Triton's: about a fifth of the launches.

    Off unless asked for: which way is faster has not been measured on a GPU yet. Values are the same, up to
    rounding. It holds from here on, or inside a ``with`` block; what the kernels do not take (see the page on
    metrics) runs as before, and so does all in compiled functions.

    >>> fused()  # doctest: +SKIP

    Args:
        mode: False to go back to torch's own operators.

    Raises:
        ImportError: Triton is not installed.
    """

    def __init__(self, mode: bool = True) -> None:
        if mode and importlib.util.find_spec("triton") is None:
            raise ImportError("gapless.metrics.fused() needs Triton: pip install triton")
        super().__init__(mode)


def on(device: torch.device) -> bool:
    """Whether what is on `device` is to be counted by Triton's kernels now."""
    return fused.on and device.type == "cuda" and not torch.compiler.is_compiling()


@functools.cache
def kernels() -> Any:
    return importlib.import_module("gapless.metrics.fused_kernels")


class Form:
    """A sum of counts, each with a factor: of true positives, predictions, targets, and of all labels.

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
        return Form(*(float(factor * one) for one in self.factors))


UNITS = tuple(Form(*(float(place == at) for at in range(4))) for place in range(4))
Scored = tuple[float, ...]
"""A row of what `score_classes` is given: two forms, a weighing, a value for 0 of 0, a complement, and if the
average over no class is NaN.
"""


def scored(
    over: Form, under: Form, weighing: str, otherwise: float, complement: bool, undefined: bool
) -> Scored:
    """What the kernel is told of a score."""
    return (
        *over.factors,
        *under.factors,
        float(WEIGHINGS.index(weighing)),
        float(otherwise),
        float(complement),
        float(undefined),
    )


class Asked:
    """The scores that were last asked for, as the kernel is given them: on the device they stay."""

    def __init__(self) -> None:
        self._rows: tuple[Scored, ...] = ()
        self._given: Tensor | None = None

    def on(self, device: torch.device, rows: tuple[Scored, ...]) -> Tensor:
        if self._given is None or self._rows != rows or self._given.device != device:
            with torch.inference_mode(False):
                self._given = moved(torch.tensor(rows, dtype=torch.float64, device="cpu"), device)
            self._rows = rows
        return self._given

    def __reduce__(self) -> Any:
        return Asked, ()


def scores(table: Tensor, asked: Asked, rows: Sequence[Scored]) -> dict[Scored, Tensor]:
    """Scores from a table ``(3, classes + 3)`` of counts, of no dimension each, in one launch."""
    several = tuple(dict.fromkeys(rows))
    given = asked.on(table.device, several)
    out = torch.empty(len(several), dtype=torch.float32, device=table.device)
    classes = table.shape[1] - 3
    some = min(1024, _power(classes))
    kernels().score_classes[(len(several),)](
        table, given, out, table.shape[1], classes, FIELDS=FIELDS, SOME=some
    )
    return dict(zip(several, out.unbind(), strict=True))


def mean(totals: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean of a state ``(3,)`` of `WeightedTotal`, in one launch."""
    out = torch.empty((), dtype=dtype, device=totals.device)
    kernels().mean_of[(1,)](totals, out)
    return out


def add_value(value: Tensor, totals: Tensor, clean: Tensor, checked: bool, speck: float) -> None:
    """Add one value to such a state, and note in `clean` whether no NaN was met yet, in one launch."""
    kernels().add_value[(1,)](value, totals, clean, CHECKED=checked, SPECK=speck)
    increment_version([totals, clean])


def count_classes(
    table: Tensor,
    clean: Tensor | None,
    batch: tuple[Tensor, Tensor],
    classes: int,
    ignored: int | None,
    pairs: bool,
) -> bool:
    """Count a batch of predictions and targets into a table of `Classes`, or with `pairs` one of
    `ConfusionCounts`, and note in `clean` whether no bad value was met yet, in two launches.

    Returns False, and counts nothing, where the kernels do not take it: tables beyond `BINS`, scores whose
    places have no common step, targets that are not contiguous integers.
    """
    preds, target = batch
    bins = _power(classes * classes + 3 if pairs else classes + 4)
    labels, scored = target.numel(), preds.dim() == target.dim() + 1
    shape = _steps(preds, classes) if scored else None
    plain = target.is_contiguous() and not _is_float(target)
    if bins > BINS or not labels or not plain or not table.is_contiguous():
        return False
    if shape is None and (scored or _is_float(preds) or not preds.is_contiguous()):
        return False
    steps = shape or (1, 0, 0, 0)
    rows = 1 if pairs else 3
    warps = 1 if labels < 1 << 14 else 4
    each = 32 * warps
    # What the programs have for themselves is together no larger than the labels they count.
    programs = max(1, min(-(-labels // each), PROGRAMS, labels * 8 // (bins * rows * 4)))
    found = torch.empty(programs * rows * bins, dtype=torch.int32, device=table.device)
    kernels().count_blocks[(programs,)](
        preds, target, found, labels, *steps, 0 if ignored is None else ignored,
        CLASSES=classes, SCORES=scored, DOUBLE=preds.dtype == torch.float64, IGNORES=ignored is not None,
        PAIRS=pairs, ROWS=each, SOME=min(64, _power(classes)), BINS=bins, num_warps=warps,
    )  # fmt: skip
    width = table.numel() // rows
    edge, step, edges, checked = (classes * classes, 1, 1, 1) if pairs else (0, classes + 1, 2, 2)
    some = min(256, bins)
    kernels().add_blocks[(rows, -(-width // some))](
        found, table, table if clean is None else clean, programs, width, edge, step, edges,
        0 if clean is None else checked, TABLE_ROWS=rows, BINS=bins, SOME=some,
    )  # fmt: skip
    increment_version([table] if clean is None else [table, clean])
    return True


def _steps(preds: Tensor, classes: int) -> tuple[int, int, int, int] | None:
    """Of scores ``(N, C, ...)``: labels in a sample, and how far samples, classes and labels are apart."""
    if preds.shape[1] != classes or not _is_float(preds):
        return None
    try:
        flat = preds.view(len(preds), classes, -1)
    except RuntimeError:
        return None
    return flat.shape[2], *flat.stride()  # type: ignore[return-value]


def _is_float(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _power(number: int) -> int:
    """The next power of two, 16 at least."""
    return 1 << max(4, (number - 1).bit_length())
