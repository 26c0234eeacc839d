"""Read states from TorchMetrics' checkpoints, and write states for its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gapless.metrics import declared
from gapless.metrics.aggregation import Values
from gapless.metrics.batch import Batch
from gapless.metrics.breadth import SizeMismatch
from gapless.metrics.classification.confusion import Confusion, ConfusionCounts
from gapless.metrics.classification.counts import BinaryCounts, HitCounts, MulticlassCounts
from gapless.metrics.classification.jaccard import Jaccard
from gapless.metrics.classification.scores import BinnedScores, KeptScores
from gapless.metrics.detection.segments import SegmentCounts
from gapless.metrics.incoming import state_readers
from gapless.metrics.metric import Metric
from gapless.metrics.regression.correlation import Correlation, CosineSimilarity
from gapless.metrics.regression.kendall import AllPairs
from gapless.metrics.regression.spearman import Pairs
from gapless.metrics.retrieval.queries import Documents
from gapless.metrics.rooms import file_in_torchmetrics
from gapless.metrics.segmentation.overlap import MeanIoU
from gapless.metrics.statistic import Statistic, new_state_id
from gapless.metrics.text.rates import Edits

States = dict[str, Any]
RATE_NAMES = ("tp", "fp", "tn", "fn")


class Exchange(NamedTuple):
    """Functions that write a metric's states as TorchMetrics' and read them back; None if impossible."""

    write: Callable[[], States] | None = None
    read: Callable[[States], None] | None = None


def exchange(metric: Metric) -> Exchange:
    """Return the functions that convert between the states of `metric` and those of TorchMetrics' metric."""
    parts = dict(metric.statistics())
    if len(parts) != 1:
        return Exchange()
    (part,) = parts.values()
    states = metric.torchmetrics_slots
    if isinstance(metric, MeanIoU) and not metric.per_class:
        return Exchange()  # TorchMetrics averages over classes sample by sample
    if states is not None:
        slots_exchange = exchange_sums(part, states, metric.dtype)
        return (
            slots_exchange._replace(write=None) if isinstance(metric, Correlation) else slots_exchange
        )  # TorchMetrics has more states
    make_exchange = EXCHANGES.get(type(metric) if isinstance(metric, CosineSimilarity) else type(part))
    return Exchange() if make_exchange is None else make_exchange(metric, part)


def exchange_sums(part: Statistic, theirs: tuple[tuple[str, ...], ...], dtype: torch.dtype) -> Exchange:
    """Exchange slots that differ little in TorchMetrics: `theirs` is `Metric.torchmetrics_slots`."""
    if any(slot not in part.saved_slots for _, slot, *_ in theirs):
        return Exchange()

    def write() -> States:
        saved = part.saved_state()
        states = {
            name: saved[slot].to(torch.int64 if "int64" in differs else dtype, copy=True)
            for name, slot, *differs in theirs
        }
        for name, _, *differs in theirs:
            states[name].mul_(-1 if "negative" in differs else 1)
        rows = [name for name, _, *differs in theirs if "row" in differs and not states[name].dim()]
        return {**states, **{name: states[name].reshape(1) for name in rows}}

    def read(states: States) -> None:
        saved = part.saved_state()
        slots = {}
        for name, slot, *differs in theirs:
            value = torch.as_tensor(states[name], device=part.device)
            value = value.reshape(()) if "row" in differs and value.numel() == 1 else value
            slots[slot] = -value if "negative" in differs else value
        for slot, value in saved.items():  # of a number of outputs that is known from here on
            like = [held for name, held in slots.items() if saved[name].dtype == value.dtype]
            like = [held for held in like if held.dim() and not value.dim() and value.is_floating_point()]
            slots.setdefault(slot, torch.zeros_like(like[0] if like else value))
        part.reset()
        part.load({slot: slots[slot].to(value.dtype) for slot, value in saved.items()})

    return Exchange(write, read)


def load_slots(part: Statistic, **slots: Tensor) -> None:
    """Set slots to these values, reshaped, and all other slots to their initial values."""
    saved = part.saved_state()
    for name, value in slots.items():
        if value.numel() != saved[name].numel():
            part.refuse_other_sizes({name: value})
    part.reset()
    part.load({**saved, **{name: value.reshape(saved[name].shape) for name, value in slots.items()}})


def exchange_classes(metric: Any, part: MulticlassCounts) -> Exchange:
    """Exchange true and false positives and negatives; a confusion matrix can only be read."""
    table = part.state["table"]
    single = metric.average == "micro" and metric.top_k == 1

    def is_only_micro() -> bool:
        """Whether all metrics that share the table use the micro average, so that one class may hold
        all counts.
        """
        collection = metric.sharing_collection
        members = () if collection is None else collection._members()
        return all(member.average == "micro" for member in members if part in member.all_statistics())

    def load(tp: Tensor, predicted: Tensor, actual: Tensor) -> None:
        together = (
            tp.numel() == 1 and single
        )  # the saved counts are of all classes: the first class takes them
        sizes = (3, table.shape[1] - part.layout.classes + tp.numel())
        new_table = torch.zeros_like(table) if together else table.new_zeros(sizes)
        new_table[:, 1 : tp.numel() + 1] = torch.stack((actual, predicted, tp)).reshape(3, -1)
        load_slots(part, table=new_table)

    def read(states: States) -> None:
        if single and not is_only_micro():
            return  # the other metrics' states hold the same counts class by class
        tp, fp, _, fn = (torch.as_tensor(states[name], device=part.device) for name in RATE_NAMES)
        load(tp, tp + fp, tp + fn)

    def read_matrix(states: States) -> None:
        matrix = torch.as_tensor(states["confmat"], device=part.device)
        load(matrix.diagonal(), matrix.sum(0), matrix.sum(1))

    def write() -> States:
        counts = part.counts()
        counts_to_save = counts.summed if single else counts
        return {name: rate.reshape(-1).clone() for name, rate in zip(RATE_NAMES, counts_to_save, strict=True)}

    if isinstance(metric, Jaccard):
        return Exchange(None, read_matrix)
    return Exchange(write, read)


def exchange_hits(metric: Any, part: HitCounts) -> Exchange:
    """Exchange counts of right and wrong predictions, for any number of classes."""

    def write() -> States:
        hits, total = part.state["hits"].reshape(1), part.state["seen"].reshape(1)
        return {"tp": hits.clone(), "fp": total - hits, "tn": torch.zeros_like(hits), "fn": total - hits}

    def read(states: States) -> None:
        tp, fn = (torch.as_tensor(states[name], device=part.device) for name in ("tp", "fn"))
        load_slots(part, hits=tp, seen=tp + fn)

    return Exchange(write, read)


def exchange_edits(metric: Any, part: Edits) -> Exchange:
    """Exchange edit counts; TorchMetrics stores the number of right words as negative errors."""

    def write() -> States:
        state = part.state
        states = {
            "errors": state["wrong"] - state["longer"],
            "target_total": state["targets"],
            "preds_total": state["preds"],
        }
        return {name: count.to(metric.dtype) for name, count in states.items()}

    def read(states: States) -> None:
        names = ("errors", "target_total", "preds_total")
        tensors = (torch.as_tensor(states[name], device=part.device) for name in names)
        errors, targets, preds = (tensor.to(torch.int64) for tensor in tensors)
        load_slots(part, longer=-errors, targets=targets, preds=preds)

    return Exchange(write, read)


def exchange_segments(metric: Any, part: SegmentCounts) -> Exchange:
    """Exchange segment counts, which TorchMetrics stores in narrower integers."""
    names = ("true_positives", "false_positives", "false_negatives")

    def write() -> States:
        counts = part.state["counts"].to(torch.int32)
        return {"iou_sum": part.state["iou"].clone(), **dict(zip(names, counts.unbind(), strict=True))}

    def read(states: States) -> None:
        iou, *counts = (torch.as_tensor(states[name], device=part.device) for name in ("iou_sum", *names))
        load_slots(part, iou=iou, counts=torch.stack(counts))

    return Exchange(write, read)


def exchange_binary(metric: Any, part: BinaryCounts) -> Exchange:
    """Exchange counts of binary decisions: four numbers for each label, or a matrix."""
    matrix = isinstance(metric, (Confusion, Jaccard))

    def load(tp: Tensor, fp: Tensor, tn: Tensor, fn: Tensor) -> None:
        counts = torch.stack((tp, fp, tp + fn, tn + fp), -1)
        table = part.state["table"]
        new_table = table.new_zeros(table.shape if part.labels is None else (len(counts), table.shape[-1]))
        new_table[..., :4] = counts.reshape(new_table[..., :4].shape)
        load_slots(part, table=new_table, seen=new_table[..., 2:].sum())

    def read(states: States) -> None:
        if not matrix:
            load(*(torch.as_tensor(states[name], device=part.device) for name in RATE_NAMES))
            return
        (tn, fp), (fn, tp) = (row.unbind(-1) for row in torch.as_tensor(states["confmat"]).unbind(-2))
        load(*(rate.to(part.device) for rate in (tp, fp, tn, fn)))

    def write() -> States:
        tp, fp, tn, fn = part.counts()
        if matrix:
            return {"confmat": torch.stack((torch.stack((tn, fp), -1), torch.stack((fn, tp), -1)), -2)}
        return {
            name: rate.reshape(-1).clone() for name, rate in zip(RATE_NAMES, (tp, fp, tn, fn), strict=True)
        }

    return Exchange(write, read)


def exchange_confusion(metric: Any, part: ConfusionCounts) -> Exchange:
    """Exchange a confusion matrix."""

    def read(states: States) -> None:
        matrix = torch.as_tensor(states["confmat"], device=part.device).reshape(-1)
        load_slots(part, table=torch.cat((matrix, matrix.new_zeros(2))))

    return Exchange(lambda: {"confmat": part.matrix()}, read)


def is_flattened(metric: Any) -> bool:
    """Whether TorchMetrics treats every class of every sample as a sample of its own."""
    return metric.task == "multiclass" and metric.average == "micro"


def exchange_bins(metric: Any, part: BinnedScores) -> Exchange:
    """Exchange a matrix for each threshold; differences between thresholds are the bins' counts."""
    classes = part.problem.classes

    def write() -> States:
        rising = part.cumulative_counts(micro=False)
        tp, fp = (counts.flip(1) for counts in (rising.tps, rising.fps))
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
        load_slots(part, table=torch.cat((table.movedim(0, 1).reshape(-1), table.new_zeros(2))))

    return Exchange() if is_flattened(metric) else Exchange(write, read)


def exchange_rows(*names: str) -> Callable[[Any, Any], Exchange]:
    """Exchange rows of update arguments: to read them, the metric is updated with them again."""

    def make_exchange(metric: Any, part: Any) -> Exchange:
        def read(states: States) -> None:
            part.reset()
            if len(states[names[0]]):
                rows = [declared.concatenate(states[name]).to(part.device) for name in names]
                part.count(Batch(rows, part.device))
                part.note()
            part.set_state_id(new_state_id())

        if isinstance(part, KeptScores) and is_flattened(metric):
            return Exchange()
        return Exchange(ROW_WRITERS.get(type(part), lambda *_: None)(metric, part), read)

    return make_exchange


def write_scores(metric: Any, part: KeptScores) -> Callable[[], States]:
    """Return a function that writes scores and targets that count as TorchMetrics keeps them."""

    def write() -> States:
        scores, marks = part.valid_rows("score"), part.valid_rows("mark").to(torch.int64)
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

    return write


def write_documents(metric: Any, part: Documents) -> Callable[[], States]:
    """Return a function that writes the documents of all queries as TorchMetrics keeps them."""

    def write() -> States:
        kept = part.valid_rows("kept")
        target = part.valid_rows("relevance")[kept]
        target = target.to(torch.int64) if part.binary else target
        return {
            "indexes": [part.valid_rows("query")[kept]],
            "preds": [part.valid_rows("score")[kept]],
            "target": [target],
        }

    return write


def write_pairs(metric: Any, part: AllPairs) -> Callable[[], States]:
    """Return a function that writes predictions and targets, ``(N, outputs)`` each."""
    return lambda: {name: [part.valid_rows(name).reshape(-1, part.outputs)] for name in ("preds", "target")}


def write_columns(*names: str) -> Callable[[Any, Any], Callable[[], States]]:
    """Return a function like :func:`write_pairs` for the columns `names`."""
    return lambda metric, part: lambda: {name: [part.valid_rows(name)] for name in names}


ROW_WRITERS: dict[type[Statistic], Callable[[Any, Any], Callable[[], States] | None]] = {
    AllPairs: write_pairs,
    Documents: write_documents,
    KeptScores: write_scores,
    Pairs: write_columns("preds", "target"),
    Values: write_columns("value"),
}
"""By statistic, the function that makes a writer of TorchMetrics' states."""
EXCHANGES: dict[type, Callable[[Any, Any], Exchange]] = {
    AllPairs: exchange_rows("preds", "target"),
    BinaryCounts: exchange_binary,
    BinnedScores: exchange_bins,
    ConfusionCounts: exchange_confusion,
    CosineSimilarity: exchange_rows("preds", "target"),
    Documents: exchange_rows("preds", "target", "indexes"),
    Edits: exchange_edits,
    HitCounts: exchange_hits,
    KeptScores: exchange_rows("preds", "target"),
    MulticlassCounts: exchange_classes,
    Pairs: exchange_rows("preds", "target"),
    SegmentCounts: exchange_segments,
    Values: exchange_rows("value"),
}
"""By statistic (or metric), the function that makes its `Exchange`."""


def torchmetrics_states(module: nn.Module) -> dict[str, Any]:
    """Return the ``state_dict`` of a metric, a collection or a model, with metrics' states as
    TorchMetrics has them.

    Names and values are those of TorchMetrics' metrics of the same names and arguments.

    >>> from gapless.metrics import MeanMetric
    >>> mean = MeanMetric()
    >>> mean.update(2.0)
    >>> torchmetrics_states(mean)
    {'mean_value': tensor(2.), 'weight': tensor(1.)}

    Raises:
        ValueError: TorchMetrics keeps other statistics for a metric, or has no metric of its name.
    """
    states = dict(module.state_dict())
    for name, metric in module.named_modules(remove_duplicate=False):
        if isinstance(metric, Metric) and metric.all_statistics():
            prefix = f"{name}." if name else ""
            for own in metric._counted_state():
                states.pop(prefix + own, None)
            written = exchange(metric).write
            if written is None or file_in_torchmetrics(type(metric)) is None:
                raise ValueError(refusal_message(metric))
            with torch.no_grad():
                states.update((prefix + state, value) for state, value in written().items())
    return states


def read_torchmetrics(metric: Metric, saved: dict[str, Any], prefix: str, errors: list[str]) -> bool:
    """Move TorchMetrics' states under `prefix` from `saved` into `metric`; return False if there are none.

    Reasons why states cannot be read are added to `errors`.
    """
    own = (*metric._own_defaults, *metric._buffers, *metric._parameters)
    inner = {name.removeprefix(prefix): name for name in saved if name.startswith(prefix)}
    theirs = {name: whole for name, whole in inner.items() if "." not in name and name not in own}
    if not (theirs and metric.all_statistics() and file_in_torchmetrics(type(metric))):
        return False
    states = {name: saved.pop(whole) for name, whole in theirs.items()}
    read_states = exchange(metric).read
    if read_states is None:
        errors.append(refusal_message(metric))
        return True
    try:
        with torch.no_grad():
            read_states(states)
    except SizeMismatch as error:
        errors.append(f"{prefix.removesuffix('.') or type(metric).__name__}: {error}")
    except (KeyError, RuntimeError) as error:
        errors.append(f"{refusal_message(metric)} ({error})")
    metric.record_update(counted=True)
    return True


def refusal_message(metric: Metric) -> str:
    """Return the message about states that cannot be read or written."""
    name = type(metric).__name__
    return (
        f"{name} and TorchMetrics' metric do not keep the same statistics with these arguments, so one "
        "cannot continue from the other's saved state: compute it again from the data, or continue with "
        "the metric that saved it (gapless.metrics.torchmetrics.unwait makes TorchMetrics' wait less)"
    )


state_readers.append(read_torchmetrics)
