"""What Gapless offers can be captured: metrics and operations in a graph, readings and batches beside it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from metrics.samples import SAMPLES as METRICS
from ops.samples import SAMPLES as OPS
from ops.samples import Inputs

import gapless
from gapless import trees
from gapless.loading import DevicePrefetcher
from gapless.ops import LogBuffer, read_later


def copied(target: Any, source: Any) -> None:
    for into, of in zip(trees.tensors(target), trees.tensors(source), strict=True):
        into.copy_(of)


def captured(graph: Any, run: Callable[[], Any]) -> bool:
    """Capture it; false where rows are counted on the CPU, which says so."""
    message = ""
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError as error:
        message = str(error)
    assert not message or "give it a `capacity`" in message
    return not message


def close(actual: Any, wanted: Any) -> None:
    for value, other in zip(trees.tensors(actual), trees.tensors(wanted), strict=True):
        torch.testing.assert_close(value, other, equal_nan=True)


def test_every_metric_updates_and_computes_in_a_graph() -> None:
    uncounted: set[str] = set()
    with gapless.emulate() as emulation, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        for sample in {metric.name: metric for metric in METRICS}.values():
            batches = [sample.data(seed, "cuda") for seed in range(2)]
            if not list(trees.tensors(batches[0])):
                continue  # of words, which are counted on the CPU
            eager, metric = sample.make().to("cuda"), sample.make().to("cuda")
            static = trees.map_tensors(batches[0], torch.clone)
            metric.update(*static)
            if not sample.may_wait:
                metric.compute()
            metric.reset()
            graph, result, computed = torch.cuda.CUDAGraph(), None, None
            if not captured(graph, lambda: metric.update(*static)):  # noqa: B023 - called at once
                uncounted.add(sample.name)
                continue
            if not sample.may_wait:
                computed = torch.cuda.CUDAGraph()
                with torch.cuda.graph(computed):
                    result = metric.compute()
            for batch in batches:
                copied(static, batch)
                graph.replay()
                eager.update(*batch)
            if computed is not None:
                computed.replay()
            wanted = eager.compute()
            close(metric.compute() if result is None else result, wanted)
    assert emulation.session.graphs == ()
    assert "CosineSimilarity" in uncounted


def test_every_operation_runs_in_a_graph() -> None:
    with gapless.emulate() as emulation:
        for sample in OPS:
            inputs = Inputs(0, "cuda")
            with torch.no_grad():
                sample.ours(inputs)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    output = sample.ours(inputs)
                later = Inputs(1, "cuda")
                for name, value in vars(inputs).items():
                    value.copy_(getattr(later, name))
                graph.replay()
                close(output, sample.ours(later))
    assert emulation.session.graphs == ()


def test_readings_of_outputs_and_prefetched_batches() -> None:
    """They stand beside the replay: neither waits."""
    with gapless.emulate() as emulation:
        static, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = static.sum()
        loader = torch.utils.data.DataLoader(torch.arange(12.0), batch_size=4)
        readings = []
        before = emulation.waits
        for batch in DevicePrefetcher(loader, "cuda"):
            static.copy_(batch)
            graph.replay()
            readings.append(read_later(total=total))
        assert emulation.waits == before
        assert [float(reading.result()["total"]) for reading in readings] == [6.0, 22.0, 38.0]
    assert emulation.session.graphs == emulation.races == ()


def test_a_reading_inside_of_a_capture_is_refused_as_cuda_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gapless.transfer._streams", {})  # those of an earlier device
    with gapless.emulate():
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="capturing stream has unjoined work"), torch.cuda.graph(graph):
            read_later(x=x * 2)


def test_a_log_is_written_behind_each_replay_and_not_in_the_graph() -> None:
    with gapless.emulate() as emulation:
        x, graph, log = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph(), LogBuffer()
        with torch.cuda.graph(graph):
            total = x.sum()
            with pytest.raises(RuntimeError, match="after each replay"):
                log.add(total=total)
        for at in range(3):
            x.fill_(at)
            graph.replay()
            log.add(total=total)
        assert torch.as_tensor(log.read().result()["total"]).tolist() == [0.0, 4.0, 8.0]
    assert emulation.session.graphs == ()


def test_what_a_capture_resizes_itself_is_resized_in_each_replay() -> None:
    """As FSDP2 does with the parameters that it gathers."""
    with gapless.emulate() as emulation:
        shard, full = torch.arange(16.0, device="cuda"), torch.empty(4, 4, device="cuda")
        x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        full.untyped_storage().resize_(0)
        with torch.cuda.graph(graph):
            full.untyped_storage().resize_(64)
            full.copy_(shard.view(4, 4))
            y = x @ full
            full.untyped_storage().resize_(0)
        for at in range(1, 4):
            x.fill_(at)
            graph.replay()
            assert torch.equal(y, at * shard.view(4, 4).sum(0))
    assert emulation.session.graphs == ()
