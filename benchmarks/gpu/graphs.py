"""A whole training step with its metrics inside one CUDA graph: whether it can be, and what it gives.

    python benchmarks/gpu/graphs.py                 # on a machine with a GPU: writes graphs.md
    python benchmarks/gpu/graphs.py --self-check    # anywhere: the emulated device, under `no_waits`

A step that waits cannot be captured. Forward, backward, the optimizer and the update of gapless.metrics are
captured together, replayed with new inputs, and the metrics compared with those of the same batches updated
one by one on the CPU; times are of replays and of the same step run eagerly, in turn. Without a GPU the step
runs on the emulated device where every wait is an error, and the metrics are compared the same way.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import _experiment
import _sheet
import _stages
import torch
from _experiment import Results
from torch import Tensor, nn

import gapless
import gapless.metrics as native
from gapless.emulation.emulator import Emulator
from gapless.prove.timing import median_interval

CLASSES, BATCH, BATCHES = 10, 64, 20
ROUNDS = _experiment.choose(15, 5)


def make_metrics(device: str) -> Any:
    options = {"task": "multiclass", "num_classes": CLASSES}
    scores = {
        "accuracy": native.Accuracy(**options),
        "recall": native.Recall(average="macro", **options),
        "f1": native.F1Score(average="macro", **options),
        "auroc": native.AUROC(thresholds=50, **options),
    }
    return native.MetricCollection(scores).to(device)


@dataclass
class Training:
    """A small network with its optimizer and metrics; its inputs stay in place."""

    device: str

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES)]
        self.model = nn.Sequential(*layers).to(self.device)
        self.images = torch.zeros(BATCH, 3, 16, 16, device=self.device)
        self.labels = torch.zeros(BATCH, dtype=torch.long, device=self.device)
        self.output = self.model(self.images).detach()
        self.metrics = make_metrics(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> Tensor:
        output = self.model(self.images)
        loss = nn.functional.cross_entropy(output, self.labels)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        self.output.copy_(output.detach())
        self.metrics.update(output.detach(), self.labels)
        return loss


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(BATCH, 3, 16, 16), torch.randint(CLASSES, (BATCH,))) for _ in range(BATCHES)]


def run(training: Training, step: Any) -> float:
    """Return the largest difference between the metrics and the CPU's after all batches."""
    reference = make_metrics("cpu")
    training.metrics.reset()
    for images, labels in batches():
        training.images.copy_(images)
        training.labels.copy_(labels)
        step()
        reference.update(training.output.cpu(), labels)
    values, wanted = training.metrics.compute(), reference.compute()
    return max(abs(float(values[name]) - float(wanted[name])) for name in wanted)


def capture(training: Training) -> torch.cuda.CUDAGraph:
    """Return the step as a graph, after warm-up runs on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.step()
    return graph


def part(name: str, emulated: bool) -> Any:
    """Return how far the metrics are off, and the milliseconds of an eager and of a replayed step."""
    if emulated:
        return {"apart": run_emulated()}
    training = Training("cuda")
    graph = capture(training)
    apart = run(training, graph.replay)
    eager = Training("cuda")
    samples = _stages.in_turn([eager.step, graph.replay], rounds=ROUNDS, block=50)
    intervals = [median_interval(seconds) for seconds in samples]
    times = [[1e3 * seconds for seconds in (each.median, each.low, each.high)] for each in intervals]
    return {"apart": apart, "times": times}


def run_emulated() -> float:
    """Run the step on the emulated device where every wait is an error; return how far metrics are off."""
    with Emulator():
        training = Training("cuda")
        training.step()

        def step() -> None:
            with gapless.no_waits():
                training.step()

        return run(training, step)


def sheet(results: Results) -> tuple[str, list[str]]:
    if "step" not in results:
        return "", []
    apart, times = results["step"]["apart"], results["step"].get("times", [])
    rows: list[list[object]] = [
        [name, f"{median:.3f}", f"{low:.3f} to {high:.3f}"]
        for name, (median, low, high) in zip(("eager", "graph"), times, strict=bool(times))
    ]
    text = f"Largest difference of a metric from the CPU's: {apart:.1e}\n\n"
    text += _sheet.table(["step", "ms", "between"], rows)
    return text, [] if apart < 1e-6 else [f"metrics differ by {apart:.1e}"]


def script() -> _experiment.Script:
    return _experiment.Script(
        __doc__, __file__, "A training step with metrics as a CUDA graph",
        f"forward, backward, SGD and four metrics of {BATCH} samples; {BATCHES} batches compared with the "
        f"CPU; {50 * ROUNDS} steps each, in blocks of 50, in turn",
        part, sheet, alone=["step"], seconds=60,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
