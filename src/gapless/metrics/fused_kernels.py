"""Triton kernels for counting and scoring classes; imported only where Triton is used."""

from __future__ import annotations

import triton
import triton.language as tl

NO_LABEL = tl.constexpr(2**31 - 1)
"""Larger than any label."""


@triton.jit
def find_largest(
    scores, at, inside, stride,
    CLASSES: tl.constexpr, ROWS: tl.constexpr, SOME: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Return the position of the first largest score in each row; NaN counts as larger than all else."""
    low = float("-inf")
    best = tl.full([ROWS], low, tl.float64 if DOUBLE else tl.float32)
    position = tl.zeros([ROWS], tl.int32)
    nan_at = tl.full([ROWS], NO_LABEL, tl.int32)
    for first in range(0, CLASSES, SOME):
        label = first + tl.arange(0, SOME)
        valid = inside[:, None] & (label < CLASSES)[None, :]
        value = tl.load(scores + at[:, None] + label.to(tl.int64)[None, :] * stride, valid, other=low)
        value = value.to(best.dtype)
        nan = value != value
        nan_at = tl.minimum(nan_at, tl.min(tl.where(nan, label[None, :], NO_LABEL), 1))
        value = tl.where(nan, low, value)
        top = tl.max(value, 1)
        place = tl.min(tl.where(value == top[:, None], label[None, :], NO_LABEL), 1)
        position = tl.where(top > best, place, position)
        best = tl.maximum(best, top)
    return tl.where(nan_at < NO_LABEL, nan_at, position)


@triton.jit
def count_blocks(
    preds, target, block_counts, labels, inner, sample_stride, class_stride, inner_stride, ignored,
    CLASSES: tl.constexpr, SCORES: tl.constexpr, DOUBLE: tl.constexpr, IGNORES: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, SOME: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count a share of the labels in each program, into bins that no other program writes to.

    Without `PAIRS` there are three rows of bins: targets, predictions, and labels where both agree. Bins are
    laid out as in `Classes`, with `PAIRS` as in `ConfusionCounts`; the last ones count rows beyond the data.
    """
    first, step = tl.program_id(0), tl.num_programs(0)
    actually = tl.zeros([BINS], tl.int32)
    if not PAIRS:
        predictions = tl.zeros([BINS], tl.int32)
        hits = tl.zeros([BINS], tl.int32)
    for block in range(first, tl.cdiv(labels, ROWS), step):
        number = tl.cast(block, tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = number < labels
        actual = tl.load(target + number, inside, other=0).to(tl.int64)
        if SCORES:
            at = number // inner * sample_stride + number % inner * inner_stride
            predicted = find_largest(preds, at, inside, class_stride, CLASSES, ROWS, SOME, DOUBLE).to(
                tl.int64
            )
        else:
            predicted = tl.load(preds + number, inside, other=0).to(tl.int64)
        left_out = actual == ignored if IGNORES else actual != actual
        actual = tl.minimum(tl.maximum(actual, -1), CLASSES)
        predicted = tl.minimum(tl.maximum(predicted, -1), CLASSES)
        if PAIRS:
            strange = (actual < 0) | (actual >= CLASSES) | (predicted < 0) | (predicted >= CLASSES)
            pair = tl.where(strange, CLASSES * CLASSES, actual * CLASSES + predicted)
            pair = tl.where(left_out, CLASSES * CLASSES + 1, pair)
            pair = tl.where(inside, pair, CLASSES * CLASSES + 2)
            actually += tl.histogram(pair.to(tl.int32), BINS)
        else:
            actual = tl.where(left_out, CLASSES + 1, actual)
            predicted = tl.where(left_out, CLASSES + 1, predicted)
            hit = tl.where(actual == predicted, actual, CLASSES + 1)
            actually += tl.histogram(tl.where(inside, actual + 1, CLASSES + 3).to(tl.int32), BINS)
            predictions += tl.histogram(tl.where(inside, predicted + 1, CLASSES + 3).to(tl.int32), BINS)
            hits += tl.histogram(tl.where(inside, hit + 1, CLASSES + 3).to(tl.int32), BINS)
    place = tl.arange(0, BINS)
    if PAIRS:
        tl.store(block_counts + first * BINS + place, actually)
    else:
        tl.store(block_counts + (first * 3 + 0) * BINS + place, actually)
        tl.store(block_counts + (first * 3 + 1) * BINS + place, predictions)
        tl.store(block_counts + (first * 3 + 2) * BINS + place, hits)


@triton.jit
def add_blocks(
    block_counts, table, clean, programs, width, edge, edge_step, edges, checked_rows,
    TABLE_ROWS: tl.constexpr, BINS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """Add the counts of all programs to the table, in order, and count updates without bad values in `clean`.

    In each of the first `checked_rows` rows, the columns `edge`, `edge` + `edge_step`, … count bad values.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * SOME + tl.arange(0, SOME)
    inside = column < width
    total = tl.load(table + row * width + column, inside, other=0)
    for program in range(programs):
        share = tl.load(block_counts + (program * TABLE_ROWS + row) * BINS + column, inside, other=0)
        total += share.to(tl.int64)
    tl.store(table + row * width + column, total, inside)
    cell = (column - edge) // edge_step
    bad = (column >= edge) & ((column - edge) % edge_step == 0) & (cell < edges) & (row < checked_rows)
    bad = bad & inside
    noted = tl.load(clean + row * edges + cell, bad, other=0)
    tl.store(clean + row * edges + cell, noted + (total == 0).to(tl.int64), bad)


@triton.jit
def add_value(value, totals, clean, CHECKED: tl.constexpr, SPECK: tl.constexpr):
    """Add one value to the sum, the weight and the NaN count of a mean, laid out as in `WeightedTotal`."""
    number = tl.load(value).to(tl.float64)
    nan = number != number
    speck = tl.full([], SPECK, tl.float64)
    added = tl.where(nan, speck, number)
    weight = tl.where(nan, speck, 1.0)
    nans = tl.load(totals + 2) + tl.where(nan, speck, 0.0)
    tl.store(totals, tl.load(totals) + added)
    tl.store(totals + 1, tl.load(totals + 1) + weight)
    tl.store(totals + 2, nans)
    if CHECKED:
        tl.store(clean, tl.load(clean) + (nans == 0.0).to(tl.int64))


@triton.jit
def compute_mean(totals, out):
    """Store the mean of `totals`, as `WeightedTotal.mean` computes it."""
    nans = tl.load(totals + 2)
    tl.store(out, ((tl.load(totals) - nans) / (tl.load(totals + 1) - nans)).to(out.dtype.element_ty))


@triton.jit
def linear_form(forms, place, tp, predicted, actual, number):
    """Return one of the two linear combinations of counts of a score: `gapless.metrics.fusing.Form`."""
    total = tl.load(forms + place) * tp + tl.load(forms + place + 1) * predicted
    return total + tl.load(forms + place + 2) * actual + tl.load(forms + place + 3) * number


@triton.jit
def score_classes(table, forms, out, width, classes, FIELDS: tl.constexpr, SOME: tl.constexpr):
    """Compute one score per program: the average over classes of one linear combination of counts divided
    by another.

    A row of `forms` holds both combinations; how classes are weighted (0: equally, if predicted or actual; 1:
    equally, if actual; 2: by how often they were actual; 3: all counts are summed first); the value for 0/0;
    whether the score is 1 minus the ratio; and whether the average over no class is NaN.
    """
    forms += tl.program_id(0) * FIELDS
    weighing, otherwise, complement = tl.load(forms + 8), tl.load(forms + 9), tl.load(forms + 10)
    nothing = tl.zeros([SOME], tl.int64)
    tps, predictions, actuals = nothing, nothing, nothing
    for first in range(0, classes, SOME):
        label = first + tl.arange(0, SOME)
        inside = label < classes
        actuals += tl.load(table + 1 + label, inside, other=0)
        predictions += tl.load(table + width + 1 + label, inside, other=0)
        tps += tl.load(table + 2 * width + 1 + label, inside, other=0)
    number = tl.sum(actuals, 0).to(tl.float64)
    score, weight = tl.zeros([SOME], tl.float64), tl.zeros([SOME], tl.float64)
    for first in range(0, classes, SOME):
        label = first + tl.arange(0, SOME)
        inside = label < classes
        actual = tl.load(table + 1 + label, inside, other=0).to(tl.float64)
        predicted = tl.load(table + width + 1 + label, inside, other=0).to(tl.float64)
        tp = tl.load(table + 2 * width + 1 + label, inside, other=0).to(tl.float64)
        over = linear_form(forms, 0, tp, predicted, actual, number)
        under = linear_form(forms, 4, tp, predicted, actual, number)
        share = tl.where(under == 0.0, otherwise, over / tl.where(under == 0.0, 1.0, under))
        share = tl.where(complement != 0.0, 1.0 - share, share)
        support = tl.where(weighing == 0.0, predicted + actual, actual)
        weigh = tl.where(weighing == 2.0, actual, tl.where(support > 0.0, 1.0, 0.0))
        score += tl.where(inside, share * weigh, 0.0)
        weight += tl.where(inside, weigh, 0.0)
    whole = tl.sum(weight, 0)
    nothing = tl.where(tl.load(forms + 11) != 0.0, float("nan"), 0.0)
    average = tl.where(whole == 0.0, nothing, tl.sum(score, 0) / tl.where(whole == 0.0, 1.0, whole))
    tp, predicted = tl.sum(tps, 0).to(tl.float64), tl.sum(predictions, 0).to(tl.float64)
    over = linear_form(forms, 0, tp, predicted, number, number * classes)
    under = linear_form(forms, 4, tp, predicted, number, number * classes)
    share = tl.where(under == 0.0, otherwise, over / tl.where(under == 0.0, 1.0, under))
    share = tl.where(complement != 0.0, 1.0 - share, share)
    score_value = tl.where(weighing == 3.0, share, average)
    tl.store(out + tl.program_id(0), score_value.to(tl.float32))
