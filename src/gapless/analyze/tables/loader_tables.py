"""Tables of what a loader's batch costs, where, what each setting would give, and whether it did."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Table
from gapless.model.loading import BatchRemedy, Diagnosis, Prediction, Seen
from gapless.model.loading_mistakes import Verification
from gapless.model.table import Row, Tone, table
from gapless.model.wording import count, duration, percent, size
from gapless.rules import _loader as words

_MIN_WAIT_SHOWN_NS = 500
"""Nanoseconds of waiting below which a cell stays empty."""
_USUAL_PREFETCH = 2
"""PyTorch's default `prefetch_factor`; other values are folded."""


def tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """Return the tables of `diagnosis` that have rows or notes."""
    results = [_costs(diagnosis), _lines(diagnosis), _remedies(diagnosis)]
    results += [_code(diagnosis, remedy) for remedy in diagnosis.remedies if remedy.advised is not None]
    results += [_settings(diagnosis), _runs(diagnosis)]
    results += [_correctness(diagnosis.correctness)] if diagnosis.correctness is not None else []
    return tuple(table for table in results if table.rows or table.notes)


def _costs(diagnosis: Diagnosis) -> Table:
    """Return CPU time and waiting for each part of making a batch."""
    fetch, transfer, around = diagnosis.fetch, diagnosis.transfer, diagnosis.around
    if around is not None and around.foreign:
        rows = [_cost("the next batch", around.cpu, around.wall - around.cpu)]
        size_note = f"{size(fetch.batch_bytes)} in {count(fetch.tensors, 'tensor')} per batch"
        return table("What a batch costs", "CPU time | waiting", rows, notes=(size_note,), where="before")
    items = "items, fetched together" if fetch.at_once else f"items ({duration(fetch.item)} each)"
    size_of = max(fetch.batch_size, 1)
    rows = [_cost(items, fetch.item_cpu * size_of, fetch.item_wait * size_of)]
    rows.append(_cost("collating", fetch.collate_cpu, 0))
    if transfer.batches:
        rows.append(_cost("sending, in the worker", transfer.send, 0))
        rows.append(_cost("receiving", transfer.receive, transfer.latency))
    if around is not None and around.wall:
        rows.append(_cost(f"{around.name}, around it", around.cpu, around.wall - around.cpu))
    rows += [_cost("pinning", transfer.pin, 0)] if transfer.pin >= 0 else []
    rows += [_cost("copying to the GPU", 0, transfer.copy)] if transfer.copy >= 0 else []
    return table(
        "What a batch costs", "CPU time | waiting", rows, notes=tuple(_facts(diagnosis)), where="before"
    )


def _cost(name: str, cpu: float, wait: float) -> Row:
    """Return a row of times in nanoseconds."""
    return Row((name, duration(cpu), duration(wait) if wait >= _MIN_WAIT_SHOWN_NS else ""))


def _facts(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield notes on sizes and on the workers' start."""
    fetch, transfer = diagnosis.fetch, diagnosis.transfer
    tensors = count(fetch.tensors, "tensor")
    yield f"{size(fetch.batch_bytes)} in {tensors} per batch, {size(fetch.item_bytes)} per item"
    if transfer.batches:
        text = (
            f"a worker's first batch comes after {duration(transfer.first)} (start method: "
            f"{diagnosis.machine.start})"
        )
        if transfer.private >= 0:
            more = size(int(transfer.growth))
            text += f"; each worker has {size(transfer.private)} of its own memory, plus {more} per batch"
        yield text


def _lines(diagnosis: Diagnosis) -> Table:
    """Return the lines that take most of the time for a batch."""
    rows = (Row((hot_line.line, percent(hot_line.share), hot_line.line.code)) for hot_line in diagnosis.hot)
    return table("Where the time for a batch goes", "share | <", rows)


def _remedies(diagnosis: Diagnosis) -> Table:
    """Return what other ways to make batches were tried."""
    rows, notes = [], list[str]()
    for remedy in diagnosis.remedies:
        if remedy.advised is None:
            continue
        step, workers = duration(remedy.advised.step), str(remedy.advised.setting.workers)
        rows.append(Row((remedy.change, duration(remedy.batch), workers, step)))
        notes += [remedy.differs] if remedy.differs else []
    title = "Tried: the same batches" if diagnosis.doubt is None else "Tried (steps not reliable)"
    return table(title, "a batch | num_workers | step", rows, notes=tuple(notes))


def _code(diagnosis: Diagnosis, remedy: BatchRemedy) -> Table:
    """Return the lines to write for `remedy`."""
    lines = words.remedy_code(diagnosis, remedy).splitlines()
    return table(f"To {remedy.change}", "<", (Row(("", line), "command") for line in lines))


def _settings(diagnosis: Diagnosis) -> Table:
    """Return the prediction of each setting; usual, advised and current ones are shown, others folded."""
    special = [prediction for prediction in (diagnosis.advised, diagnosis.now) if prediction is not None]

    def is_shown(prediction: Prediction) -> bool:
        setting = prediction.setting
        is_usual = not setting.workers or setting.prefetch == _USUAL_PREFETCH
        return is_usual or any(is_same_setting(prediction, other) for other in special)

    order = sorted(diagnosis.predictions, key=lambda prediction: not is_shown(prediction))
    shown = sum(is_shown(prediction) for prediction in diagnosis.predictions)
    rows = (_setting(prediction, diagnosis) for prediction in order)
    columns = "prefetch | step | waiting | ready | first batch | memory | <"
    bounds = ", ".join(
        f"{bound.stage} {duration(bound.least)}" for bound in diagnosis.bounds if bound.least >= 1_000
    )
    notes = (f"lower bounds of a step: {bounds}",) if bounds else ()
    title = "num_workers" if diagnosis.doubt is None else "num_workers (not reliable)"
    return table(title, columns, rows, shown=shown, rest="settings", notes=notes)


def _setting(prediction: Prediction, diagnosis: Diagnosis) -> Row:
    """Return the row of one setting's prediction."""
    take = (
        diagnosis.doubt is None
        and diagnosis.advised is not None
        and is_same_setting(prediction, diagnosis.advised)
    )
    now = diagnosis.now is not None and is_same_setting(prediction, diagnosis.now)
    remark = prediction.excluded or ", ".join(word for word, so in (("take", take), ("now", now)) if so)
    tone: Tone = "good" if take else "dim" if prediction.excluded else ""
    cells = (
        str(prediction.setting.workers),
        str(prediction.setting.prefetch) if prediction.setting.workers else "-",
        duration(prediction.step),
        percent(prediction.wait / prediction.step if prediction.step else 0.0),
        f"{prediction.ready:.1f}",
        duration(prediction.first),
        size(prediction.memory),
        remark,
    )
    return Row(cells, tone)


def is_same_setting(prediction: Prediction, other: Prediction) -> bool:
    """Whether two predictions have the same workers and prefetched batches."""
    pair = (prediction.setting.workers, prediction.setting.prefetch if prediction.setting.workers else 0)
    return pair == (other.setting.workers, other.setting.prefetch if other.setting.workers else 0)


def _runs(diagnosis: Diagnosis) -> Table:
    """Return what real runs measured, as the loader is and as advised."""
    rows = [
        _run(name, run)
        for name, run in (("as it is", diagnosis.seen), ("as advised", diagnosis.seen_advised))
        if run is not None
    ]
    columns = "num_workers | step | waiting | ready | predicted"
    return table("Run for real", columns, rows)


def _run(name: str, run: Seen) -> Row:
    """Return the row of one real run, with how far the prediction was off."""
    off = f" ({100 * (run.predicted / run.step - 1):+.0f} %)" if run.step else ""
    predicted = f"{duration(run.predicted)}{off}" if run.predicted >= 0 else ""
    ready = f"{run.ready:.1f}" if run.ready >= 0 else ""
    return Row((name, str(run.setting.workers), duration(run.step), percent(run.share), ready, predicted))


def _correctness(verification: Verification) -> Table:
    """Say how many items were checked if no mistakes were found; mistakes are findings."""
    amount = f"{verification.items:,} item{'' if verification.items == 1 else 's'}"
    parts = [count(verification.ranks, "rank")] if verification.ranks > 1 else []
    parts += [count(verification.workers, "worker")] if verification.workers else []
    amount += f" of {' and '.join(parts)}" if parts else ""
    right = () if verification.mistakes else (f"Yes: no mistakes found in {amount}",)
    return Table(title="Does it yield the right items?", notes=(*right, *verification.notes))
