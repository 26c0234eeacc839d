"""States as TorchMetrics' checkpoints have them: read into ours, and written for its metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gapless.metrics import declared
from gapless.metrics.aggregation import Values
from gapless.metrics.batch import Batch
from gapless.metrics.classification.confusion import Confusion, ConfusionCounts
from gapless.metrics.classification.counts import BinaryCounts, HitCounts, MulticlassCounts
from gapless.metrics.classification.jaccard import Jaccard
from gapless.metrics.classification.scores import BinnedScores, KeptScores
from gapless.metrics.detection.segments import SegmentCounts
from gapless.metrics.incoming import others_states
from gapless.metrics.metric import Metric
from gapless.metrics.regression.correlation import Correlation, CosineSimilarity
from gapless.metrics.regression.kendall import AllPairs
from gapless.metrics.regression.spearman import Pairs
from gapless.metrics.retrieval.queries import Documents
from gapless.metrics.rooms import file_in_torchmetrics
from gapless.metrics.segmentation.overlap import MeanIoU
from gapless.metrics.statistic import SizeMismatch, Statistic, new_past
from gapless.metrics.text.rates import Edits

States = dict[str, Any]
RATES = ("tp", "fp", "tn", "fn")


class Exchange(NamedTuple):
    """How the states of a metric become those of TorchMetrics, and the other way: None where they cannot."""

    written: Callable[[], States] | None = None
    read: Callable[[States], None] | None = None


def exchange(metric: Metric) -> Exchange:
    """How states of `metric` and those of TorchMetrics' metric of its name become each other."""
    parts = dict(metric.statistics())
    if len(parts) != 1:
        return Exchange()
    (part,) = parts.values()
    spec = metric.torchmetrics_slots
    if isinstance(metric, MeanIoU) and not metric.per_class:
        return Exchange()  # there the mean over classes is taken sample by sample
    if spec is not None:
        found = of_sums(part, spec, metric.dtype)
        return found._replace(written=None) if isinstance(metric, Correlation) else found  # theirs has more
    of_kind = KINDS.get(type(metric) if isinstance(metric, CosineSimilarity) else type(part))
    return Exchange() if of_kind is None else of_kind(metric, part)


def of_sums(part: Statistic, spec: str, dtype: torch.dtype) -> Exchange:
    """Of slots that have other names there."""
    fields = [tuple(re.split("[:=]", one)) for one in spec.split()]
    if any(slot not in part.saved_slots for _, _, slot in fields):
        return Exchange()

    def written() -> States:
        saved = part.saved()
        dtypes = {"i": torch.int64}
        found = {
            name: saved[slot].to(dtypes.get(kind[0], dtype), copy=True).mul_(-1 if "-" in kind else 1)
            for name, kind, slot in fields
        }
        rows = [name for name, kind, _ in fields if "1" in kind and not found[name].dim()]
        return {**found, **{name: found[name].reshape(1) for name in rows}}

    def read(states: States) -> None:
        saved = part.saved()
        given = {}
        for name, kind, slot in fields:
            value = torch.as_tensor(states[name], device=part.device)
            value = value.reshape(()) if "1" in kind and value.numel() == 1 else value
            given[slot] = -value if "-" in kind else value
        for slot, value in saved.items():  # of a number of outputs that is known from here on
            like = [one for name, one in given.items() if saved[name].dtype == value.dtype]
            like = [one for one in like if one.dim() and not value.dim() and value.is_floating_point()]
            given.setdefault(slot, torch.zeros_like(like[0] if like else value))
        part.reset()
        part.load({slot: given[slot].to(value.dtype) for slot, value in saved.items()})

    return Exchange(written, read)


def loads(part: Statistic, **slots: Tensor) -> None:
    """Give slots these values, of whatever shape has as many, and all others what they begin with."""
    saved = part.saved()
    for name, value in slots.items():
        if value.numel() != saved[name].numel():
            part.refuse_other_sizes({name: value})
    part.reset()
    part.load({**saved, **{name: value.reshape(saved[name].shape) for name, value in slots.items()}})


def of_classes(metric: Any, part: MulticlassCounts) -> Exchange:
    """Of true and false positives and negatives; of a confusion matrix, which cannot be had from counts."""
    table = part.state["table"]
    single = metric.average == "micro" and metric.top_k == 1

    def alone() -> bool:
        """Whether all metrics of the table are of all classes together, so that one class may have all."""
        others = () if metric._lender is None else metric._lender._members()
        return all(one.average == "micro" for one in others if part in one._parts)

    def load(tp: Tensor, predicted: Tensor, actual: Tensor) -> None:
        together = tp.numel() == 1 and single  # all classes are one number, which the first may have
        sizes = (3, table.shape[1] - part.layout.classes + tp.numel())
        found = torch.zeros_like(table) if together else table.new_zeros(sizes)
        found[:, 1 : tp.numel() + 1] = torch.stack((actual, predicted, tp)).reshape(3, -1)
        loads(part, table=found)

    def read(states: States) -> None:
        if single and not alone():
            return  # what the others have says it all
        tp, fp, _, fn = (torch.as_tensor(states[name], device=part.device) for name in RATES)
        load(tp, tp + fp, tp + fn)

    def read_matrix(states: States) -> None:
        matrix = torch.as_tensor(states["confmat"], device=part.device)
        load(matrix.diagonal(), matrix.sum(0), matrix.sum(1))

    def written() -> States:
        counts = part.counts()
        several = counts.summed if single else counts
        return {name: one.reshape(-1).clone() for name, one in zip(RATES, several, strict=True)}

    if isinstance(metric, Jaccard):
        return Exchange(None, read_matrix)
    return Exchange(written, read)


def of_hits(metric: Any, part: HitCounts) -> Exchange:
    """Of right and wrong predictions, of however many classes."""

    def written() -> States:
        hits, seen = part.state["hits"].reshape(1), part.state["seen"].reshape(1)
        return {"tp": hits.clone(), "fp": seen - hits, "tn": torch.zeros_like(hits), "fn": seen - hits}

    def read(states: States) -> None:
        tp, fn = (torch.as_tensor(states[name], device=part.device) for name in ("tp", "fn"))
        loads(part, hits=tp, seen=tp + fn)

    return Exchange(written, read)


def of_edits(metric: Any, part: Edits) -> Exchange:
    """Of the words that are right, whose number TorchMetrics keeps as a negative one."""

    def written() -> States:
        state = part.state
        found = {
            "errors": state["wrong"] - state["longer"],
            "target_total": state["targets"],
            "preds_total": state["preds"],
        }
        return {name: one.to(metric.dtype) for name, one in found.items()}

    def read(states: States) -> None:
        names = ("errors", "target_total", "preds_total")
        given = (torch.as_tensor(states[name], device=part.device) for name in names)
        errors, targets, preds = (one.to(torch.int64) for one in given)
        loads(part, longer=-errors, targets=targets, preds=preds)

    return Exchange(written, read)


def of_segments(metric: Any, part: SegmentCounts) -> Exchange:
    """Of segments: TorchMetrics counts in narrower integers."""
    names = ("true_positives", "false_positives", "false_negatives")

    def written() -> States:
        counts = part.state["counts"].to(torch.int32)
        return {"iou_sum": part.state["iou"].clone(), **dict(zip(names, counts.unbind(), strict=True))}

    def read(states: States) -> None:
        iou, *counts = (torch.as_tensor(states[name], device=part.device) for name in ("iou_sum", *names))
        loads(part, iou=iou, counts=torch.stack(counts))

    return Exchange(written, read)


def of_sides(metric: Any, part: BinaryCounts) -> Exchange:
    """Of two sides of a threshold: four numbers for each label, or their matrix."""
    matrix = isinstance(metric, (Confusion, Jaccard))

    def load(tp: Tensor, fp: Tensor, tn: Tensor, fn: Tensor) -> None:
        counts = torch.stack((tp, fp, tp + fn, tn + fp), -1)
        table = part.state["table"]
        found = table.new_zeros(table.shape if part.labels is None else (len(counts), table.shape[-1]))
        found[..., :4] = counts.reshape(found[..., :4].shape)
        loads(part, table=found, seen=found[..., 2:].sum())

    def read(states: States) -> None:
        if not matrix:
            load(*(torch.as_tensor(states[name], device=part.device) for name in RATES))
            return
        (tn, fp), (fn, tp) = (row.unbind(-1) for row in torch.as_tensor(states["confmat"]).unbind(-2))
        load(*(one.to(part.device) for one in (tp, fp, tn, fn)))

    def written() -> States:
        tp, fp, tn, fn = part.counts()
        if matrix:
            return {"confmat": torch.stack((torch.stack((tn, fp), -1), torch.stack((fn, tp), -1)), -2)}
        return {name: one.reshape(-1).clone() for name, one in zip(RATES, (tp, fp, tn, fn), strict=True)}

    return Exchange(written, read)


def of_pairs(metric: Any, part: ConfusionCounts) -> Exchange:
    """Of a confusion matrix."""

    def read(states: States) -> None:
        matrix = torch.as_tensor(states["confmat"], device=part.device).reshape(-1)
        loads(part, table=torch.cat((matrix, matrix.new_zeros(2))))

    return Exchange(lambda: {"confmat": part.matrix()}, read)


def flattened(metric: Any) -> bool:
    """Whether TorchMetrics takes every class of every sample for a sample of its own."""
    return metric.task == "multiclass" and metric.average == "micro"


def of_bins(metric: Any, part: BinnedScores) -> Exchange:
    """Of a matrix for each threshold, which tells what lies between two of them."""
    classes = part.problem.classes

    def written() -> States:
        rising = part.cumulative_counts(micro=False)
        tp, fp = (one.flip(1) for one in (rising.tps, rising.fps))
        fn, tn = rising.positives[:, None] - tp, rising.negatives[:, None] - fp
        matrix = torch.stack((torch.stack((tn, fp), -1), torch.stack((fn, tp), -1)), -2).movedim(0, 1)
        return {"confmat": matrix[:, 0] if part.problem.task == "binary" else matrix}

    def read(states: States) -> None:
        matrix = torch.as_tensor(states["confmat"], device=part.device)
        saved, own = (len(matrix), matrix.numel() // (4 * len(matrix))), (part.bins - 1, classes)
        if saved != own:
            raise SizeMismatch(
                f"size mismatch for confmat: the saved state is for {saved[0]} thresholds and {saved[1]} "
                f"classes or labels, but this metric is for {own[0]} and {own[1]}"
            )
        matrix = matrix.reshape(len(matrix), classes, 2, 2)
        above = torch.stack((matrix[..., 0, 1], matrix[..., 1, 1]), -1)[part.thresholds_as_passed.argsort()]
        whole = matrix.sum(-1)[:1]
        table = torch.cat((whole, above)) - torch.cat((above, torch.zeros_like(whole)))
        loads(part, table=torch.cat((table.movedim(0, 1).reshape(-1), table.new_zeros(2))))

    return Exchange() if flattened(metric) else Exchange(written, read)


def of_rows(*names: str) -> Callable[[Any, Any], Exchange]:
    """Of what updates were given, in rows: they are updated with it again."""

    def of(metric: Any, part: Any) -> Exchange:
        def read(states: States) -> None:
            part.reset()
            if len(states[names[0]]):
                rows = [declared.joined(states[name]).to(part.device) for name in names]
                part.count(Batch(rows, part.device))
                part.note()
            part.settle(new_past())

        if isinstance(part, KeptScores) and flattened(metric):
            return Exchange()
        return Exchange(ROWS.get(type(part), lambda *_: None)(metric, part), read)

    return of


def scores_written(metric: Any, part: KeptScores) -> Callable[[], States]:
    """Scores and targets that count, as TorchMetrics keeps them."""

    def written() -> States:
        scores, marks = part.known("score"), part.known("mark").to(torch.int64)
        if part.problem.task == "multilabel":
            ignored = part.problem.ignore_index
            return {
                "preds": [scores],
                "target": [marks if ignored is None else marks.masked_fill(marks == -1, ignored)],
            }
        kept = ((marks == 0) | (marks == 1)).all(1)
        scores, marks = scores[kept], marks[kept]
        if part.problem.task == "binary":
            return {"preds": [scores[:, 0]], "target": [marks[:, 0]]}
        return {"preds": [scores], "target": [marks.argmax(1)]}

    return written


def documents_written(metric: Any, part: Documents) -> Callable[[], States]:
    def written() -> States:
        kept = part.known("kept")
        target = part.known("relevance")[kept]
        target = target.to(torch.int64) if part.binary else target
        return {
            "indexes": [part.known("query")[kept]],
            "preds": [part.known("score")[kept]],
            "target": [target],
        }

    return written


def pairs_written(metric: Any, part: AllPairs) -> Callable[[], States]:
    return lambda: {name: [part.known(name).reshape(-1, part.outputs)] for name in ("preds", "target")}


def columns_written(*names: str) -> Callable[[Any, Any], Callable[[], States]]:
    return lambda metric, part: lambda: {name: [part.known(name)] for name in names}


ROWS: dict[type[Statistic], Callable[[Any, Any], Callable[[], States] | None]] = {
    AllPairs: pairs_written,
    Documents: documents_written,
    KeptScores: scores_written,
    Pairs: columns_written("preds", "target"),
    Values: columns_written("value"),
}
KINDS: dict[type, Callable[[Any, Any], Exchange]] = {
    AllPairs: of_rows("preds", "target"),
    BinaryCounts: of_sides,
    BinnedScores: of_bins,
    ConfusionCounts: of_pairs,
    CosineSimilarity: of_rows("preds", "target"),
    Documents: of_rows("preds", "target", "indexes"),
    Edits: of_edits,
    HitCounts: of_hits,
    KeptScores: of_rows("preds", "target"),
    MulticlassCounts: of_classes,
    Pairs: of_rows("preds", "target"),
    SegmentCounts: of_segments,
    Values: of_rows("value"),
}


def torchmetrics_states(module: nn.Module) -> dict[str, Any]:
    """The ``state_dict`` of a metric, a collection, or a model that holds some, with states as TorchMetrics'
    metrics of the same names and arguments have them.

    >>> from gapless.metrics import MeanMetric
    >>> mean = MeanMetric()
    >>> mean.update(2.0)
    >>> torchmetrics_states(mean)
    {'mean_value': tensor(2.), 'weight': tensor(1.)}

    Raises:
        ValueError: a metric keeps other statistics than TorchMetrics' does, or that has none of its name.
    """
    found = dict(module.state_dict())
    for name, metric in module.named_modules(remove_duplicate=False):
        if isinstance(metric, Metric) and metric._parts:
            prefix = f"{name}." if name else ""
            for own in metric._counted_state():
                found.pop(prefix + own, None)
            written = exchange(metric).written
            if written is None or file_in_torchmetrics(type(metric)) is None:
                raise ValueError(refusal(metric))
            with torch.no_grad():
                found.update((prefix + state, value) for state, value in written().items())
    return found


def read(metric: Metric, saved: dict[str, Any], prefix: str, errors: list[str]) -> bool:
    """Take what `saved` has under `prefix` of TorchMetrics' states out of it and into the metric; False where
    there is nothing. What cannot be read is told in `errors`.
    """
    own = (*metric._own_defaults, *metric._buffers, *metric._parameters)
    inner = {name.removeprefix(prefix): name for name in saved if name.startswith(prefix)}
    theirs = {name: whole for name, whole in inner.items() if "." not in name and name not in own}
    if not (theirs and metric._parts and file_in_torchmetrics(type(metric))):
        return False
    states = {name: saved.pop(whole) for name, whole in theirs.items()}
    taken = exchange(metric).read
    if taken is None:
        errors.append(refusal(metric))
        return True
    try:
        with torch.no_grad():
            taken(states)
    except SizeMismatch as error:
        errors.append(f"{prefix.removesuffix('.') or type(metric).__name__}: {error}")
    except (KeyError, RuntimeError) as error:
        errors.append(f"{refusal(metric)} ({error})")
    metric._ledger.updated_once(False)
    return True


def refusal(metric: Metric) -> str:
    """What to say of states that cannot be read or written."""
    name = type(metric).__name__
    return (
        f"{name} and TorchMetrics' metric do not keep the same statistics with these arguments, so one "
        "cannot continue from the other's saved state: compute it again from the data, or continue with "
        "the metric that saved it (gapless.metrics.torchmetrics.unwait makes TorchMetrics' wait less)"
    )


others_states.append(read)
