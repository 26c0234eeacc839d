"""Triton's kernels for classes: the same values as torch's operators, in few launches, and they compile."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES, Sample
from metrics.test_launches import batch, five, launched
from torch import Tensor

import gapless
import gapless.metrics as metrics
from gapless.metrics import fusing
from gapless.metrics.aggregation import WeightedTotal
from gapless.metrics.classification.confusion import ConfusionCounts
from gapless.metrics.classification.count_metrics import CountMetric
from gapless.metrics.classification.counts import MulticlassCounts, OutcomeCounts

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
FUSED = (ConfusionCounts, MulticlassCounts, WeightedTotal)


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_the_mode_is_refused():
    with pytest.raises(ImportError, match="pip install triton"):
        metrics.fused()
    assert not metrics.fused.on


def test_forms_are_what_the_metrics_divide():
    """Of every score that the kernel computes, for counts of small numbers."""
    tp, predicted, actual = torch.tensor([3, 0, 5]), torch.tensor([4, 2, 9]), torch.tensor([7, 0, 8])
    counts = OutcomeCounts(tp, predicted, actual, lambda: actual.sum(-1, keepdim=True))
    numbers = torch.stack((counts.tp, counts.predicted, counts.actual, torch.full((3,), 15))).double()
    compared = 0
    for name in metrics.classification.__all__:
        metric = sample_of(name)
        row = metric.fused_row() if isinstance(metric, CountMetric) else None
        if row is not None:
            compared += 1
            for place, whole in zip((0, 4), metric.ratio(counts), strict=True):
                form = torch.tensor(row[place : place + 4], dtype=torch.float64)
                torch.testing.assert_close(form @ numbers, whole.double(), msg=name)
    assert compared >= 7


def sample_of(name: str) -> Any:
    return next(
        (sample.make() for sample in SAMPLES if sample.name == name and sample.name.startswith("Multi")), None
    )


def fusible() -> Iterator[Sample]:
    """The samples of which any statistic has a kernel."""
    for sample in SAMPLES:
        metric = sample.make()
        if any(isinstance(part, FUSED) for part in getattr(metric, "all_statistics", tuple)()):
            yield sample


@pytest.fixture
def kernels() -> Iterator[list[str]]:
    """The names of the kernels that Triton launched."""
    hooks = pytest.importorskip("triton").knobs.runtime.launch_enter_hook
    names: list[str] = []

    def enter(metadata: Any) -> None:
        names.append(metadata.get()["name"])

    hooks.add(enter)
    yield names
    hooks.remove(enter)


def results(metric: Any, data: list[tuple[Any, ...]]) -> tuple[Any, Any, Any]:
    """What a metric says of batches, of one more by ``forward``, and of all at the end, with its state."""
    for arguments in data[:-1]:
        metric.update(*arguments)
    first, of_batch = metric.compute(), metric(*data[-1])
    return [first, of_batch, metric.compute()], metric._counted_state(), metric


def on_host(value: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda item: item.cpu() if isinstance(item, Tensor) else item, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_are_those_of_the_plain_way(kernels, dtype):
    samples = list(fusible())
    assert len(samples) > 20
    for sample in samples:
        with gapless.emulate(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = [
                tuple(
                    argument.to(dtype)
                    if isinstance(argument, Tensor) and argument.is_floating_point()
                    else argument
                    for argument in sample.data(seed, "cuda")
                )
                for seed in range(3)
            ]
            plain = results(sample.make().to("cuda"), data)
            with metrics.fused():
                fused = results(sample.make().to("cuda"), data)
            torch.testing.assert_close(on_host(fused[0]), on_host(plain[0]), msg=sample.label)
            for name, value in plain[1].items():  # what is no class is where it was, or is in no result
                if name.endswith(".clean"):
                    assert torch.equal(fused[1][name].cpu(), value.cpu()), sample.label
    assert {"count_blocks", "add_blocks", "add_value", "compute_mean", "score_classes"} <= set(kernels)


def scores(random: torch.Generator, classes: int) -> tuple[Tensor, Tensor]:
    preds = torch.randn(90, classes, generator=random)
    preds[3] = -torch.inf
    preds[4, 1] = preds[5, 1] = preds[5, 2] = torch.nan
    preds[6] = 1.0
    return preds, torch.randint(0, classes, (90,), generator=random)


def image(random: torch.Generator, classes: int) -> tuple[Tensor, Tensor]:
    preds = torch.randn(3, classes, 9, 70, generator=random)
    return preds, torch.randint(0, classes, (3, 9, 70), generator=random)


def channels_last(random: torch.Generator, classes: int) -> tuple[Tensor, Tensor]:
    preds, target = image(random, classes)
    return preds.to(memory_format=torch.channels_last), target.to(torch.int16)


def labels(random: torch.Generator, classes: int) -> tuple[Tensor, Tensor]:
    target = torch.randint(0, classes, (20_000,), generator=random)
    return target.roll(3).to(torch.int32), target


@needs_triton
@pytest.mark.parametrize("make_batch", [scores, image, channels_last, labels])
@pytest.mark.parametrize("ignored", [None, 1, 255])
@pytest.mark.parametrize("classes", [3, 40, 300])
def test_batches_of_all_kinds_are_counted(classes: int, ignored: int | None, make_batch: Callable[..., Any]):
    """Beside the plain way on the CPU: every count, and what was bad with the update that brought it."""
    several = {
        "counts": metrics.MulticlassStatScores(classes, average=None, ignore_index=ignored),
        "pairs": metrics.MulticlassConfusionMatrix(classes, ignore_index=ignored),
    }
    preds, target = make_batch(torch.Generator().manual_seed(classes), classes)
    if ignored is not None:
        target.flatten()[::7] = ignored
    expected = metrics.MetricCollection(several).clone()
    expected.update(preds, target)
    with gapless.emulate(), metrics.fused():
        collection = metrics.MetricCollection(several).to("cuda")
        collection.update(preds.cuda(), target.cuda())
        torch.testing.assert_close(on_host(collection.compute()), expected.compute())
        collection.check()
        target.flatten()[:3] = torch.tensor([-2, classes, torch.iinfo(target.dtype).min])
        collection.update(preds.cuda(), target.cuda())
        with pytest.raises(RuntimeError) as error:
            collection.check()
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert all("Detected 3" in line and "(first in update 2)" in line for line in lines)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("classes", [10, 1000])
def test_five_metrics_in_few_launches(kernels, classes: int, average: str):
    with gapless.emulate() as emulation, metrics.fused():
        together = metrics.MetricCollection(five(classes, average)).to("cuda")

        def counted(call: Callable[[], Any]) -> int:
            kernels.clear()
            return launched(call) + len(kernels)

        def update(seed: int) -> None:
            value, preds, target = batch(classes, seed)
            together.update(value=value, preds=preds, target=target)

        for seed in range(3):
            update(seed)
        together.compute()
        value, preds, target = batch(classes, 3)
        before = emulation.waits
        assert counted(lambda: together.update(value=value, preds=preds, target=target)) <= 4
        assert counted(together.compute) <= 6
        assert counted(together.reset) <= 1
        assert emulation.waits == before


MANY = fusing.MAX_BINS + 1
NOT_TAKEN: list[tuple[metrics.Metric, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = [
    (metrics.MulticlassRecall(MANY), lambda scores, target: (target, target)),
    (metrics.MulticlassRecall(5, top_k=2), lambda scores, target: (scores[..., 0], target[..., 0])),
    (metrics.MulticlassRecall(5), lambda scores, target: (target[:, ::2], target[:, ::2])),
    (metrics.MulticlassRecall(5), lambda scores, target: (target.float(), target)),
    (metrics.MulticlassRecall(5), lambda scores, target: (scores[:0], target[:0])),
    (metrics.MulticlassRecall(5), lambda scores, target: (scores[..., :3], target[..., :3].contiguous())),
]


@needs_triton
@pytest.mark.parametrize(("metric", "chosen"), NOT_TAKEN)
def test_what_the_kernels_do_not_take_is_counted_as_before(kernels, metric, chosen):
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, 8, 6, generator=random)
    target = torch.randint(0, 5, (4, 8, 6), generator=random)
    expected = metric.clone()
    expected.update(*chosen(scores, target))
    with gapless.emulate(), metrics.fused():
        metric.to("cuda").update(*chosen(scores.cuda(), target.cuda()))
        torch.testing.assert_close(metric.compute().cpu(), expected.compute())
    assert "count_blocks" not in kernels


@needs_triton
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64", None])
def test_the_kernels_compile_for_a_gpu(dtype: str | None):
    """As far as machine code, which needs no GPU; None: labels."""
    from gapless.metrics import fused_kernels

    numbers = ("labels", "inner", "sample_stride", "class_stride", "inner_stride", "ignored")
    argument_types = {
        "preds": f"*{dtype or 'i64'}",
        "target": "*i64",
        "block_counts": "*i32",
        **dict.fromkeys(numbers, "i32"),
    }
    constants = {"CLASSES": 15, "SCORES": dtype is not None, "DOUBLE": dtype == "fp64", "IGNORES": True}
    for pairs, bins, warps in ((False, 32, 1), (True, 256, 4)):
        bound = {**constants, "PAIRS": pairs, "ROWS": 32 * warps, "SOME": 16, "BINS": bins}
        assert "count_blocks" in ptx_of(fused_kernels.count_blocks, argument_types, bound, warps)
    numbers = ("programs", "width", "edge", "edge_step", "edges", "checked_rows")
    argument_types = {"block_counts": "*i32", "table": "*i64", "clean": "*i64"}
    argument_types |= dict.fromkeys(numbers, "i32")
    ptx_of(fused_kernels.add_blocks, argument_types, {"TABLE_ROWS": 3, "BINS": 32, "SOME": 32})
    argument_types = {"value": f"*{dtype or 'fp16'}", "totals": "*fp64", "clean": "*i64"}
    ptx_of(fused_kernels.add_value, argument_types, {"CHECKED": True, "SPECK": 2.0**-1000})
    ptx_of(fused_kernels.compute_mean, {"totals": "*fp64", "out": f"*{dtype or 'fp16'}"}, {})
    argument_types = {"table": "*i64", "forms": "*fp64", "out": "*fp32", "width": "i32", "classes": "i32"}
    ptx_of(fused_kernels.score_classes, argument_types, {"FIELDS": fusing.SCORE_FIELDS, "SOME": 16})


def ptx_of(kernel: Any, argument_types: dict[str, str], constants: dict[str, Any], warps: int = 4) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**argument_types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps})
    return compiled.asm["ptx"]
