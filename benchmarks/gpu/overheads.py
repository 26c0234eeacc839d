"""What Gapless itself costs on a GPU: profiles, callbacks, guards, annotations, metrics.

    python benchmarks/gpu/overheads.py                 # on a machine with a GPU: writes overheads.md
    python benchmarks/gpu/overheads.py --self-check    # anywhere: small, on the emulated device

A step is that of a network of many small kernels, which the CPU limits: there overhead shows most. Each way
of running it takes turns with the plain one. Metrics are those of benchmarks/metric_launches.py, beside
TorchMetrics: the CPU's time of an update, the time until the GPU is done, and its kernels by the profiler.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _experiment
import _seen
import _sheet
import torch
from _experiment import Results
from torch import nn

STEPS = ("profile", "guards", "annotate", "lightning", "huggingface")
CLASSES = (10, 1000)
Step = Callable[[], object]


class Net(nn.Module):
    """Sixteen linear layers, each normalized."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(16))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + nn.functional.gelu(layer(norm(x)))
        return x


def training(size: int) -> Step:
    """Return a training step."""
    torch.manual_seed(0)
    model = Net(size).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(32, size, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def seconds(step: Step, block: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(block):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / block


def in_turn(ways: dict[str, Step], small: bool) -> Results:
    """Return the microseconds per step of each, and the median ratio to the first, block by block."""
    rounds, block = (2, 1) if small else _experiment.choose((25, 20), (9, 20))
    for step in ways.values():
        seconds(step, 1 if small else 10)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            taken[name].append(seconds(step, block))
    first = taken[next(iter(ways))]
    return {
        name: [
            1e6 * statistics.median(own),
            statistics.median(a / b for a, b in zip(own, first, strict=True)),
        ]
        for name, own in taken.items()
    }


def profile(small: bool) -> Results:
    """Time steps while `gapless.profile` waits for its window, in it without stacks and with, and after
    it."""
    from gapless.analyze.run.boundary import StepEnds
    from gapless.capture import profiling

    step, block = training(32 if small else 128), 4 if small else 20
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(1 if small else 3):
            seconds(step, 3)
            times.setdefault("plain", []).append(seconds(step, block))
            window = profiling.Schedule(wait=block + 1, warmup=2, active=block)
            machine = (
                profiling.machine()
                if _experiment.REAL
                else profiling.ProfiledDevice("CPU", (torch.profiler.ProfilerActivity.CPU,))
            )
            recipe = profiling.Recipe(Path(folder) / str(turn), "overheads", window)
            capture = profiling.Profiling(recipe, machine, StepEnds()).start()
            times.setdefault("before the window", []).append(seconds(step, block))
            seconds(step, 3)
            times.setdefault("recorded", []).append(seconds(step, block - 1))
            begun = time.perf_counter()
            seconds(step, 3)
            times.setdefault("one file written", []).append(time.perf_counter() - begun)
            times.setdefault("recorded with stacks", []).append(seconds(step, block - 1))
            seconds(step, 1)
            times.setdefault("behind the window", []).append(seconds(step, block))
            capture.stop()
    first = times["plain"]
    return {
        name: [
            1e6 * statistics.median(own),
            statistics.median(a / b for a, b in zip(own, first, strict=True)),
        ]
        for name, own in times.items()
    }


def guards(small: bool) -> Results:
    import gapless

    step = training(32 if small else 128)

    def guarded() -> None:
        with gapless.no_waits():
            step()

    return in_turn({"plain": step, "`no_waits()` around each step": guarded}, small)


def annotate(small: bool) -> Results:
    """Time `gapless.annotate` on the network, outside a profile."""
    import gapless

    step = training(32 if small else 128)
    plain = in_turn({"plain": step}, small)
    with gapless.annotate(Net):
        labelled = in_turn({"annotated, no profile": step}, small)["annotated, no profile"][0]
    return plain | {"annotated, no profile": [labelled, labelled / plain["plain"][0]]}


def time_fit(trainer: Callable[[list[Any]], None], callback: Callable[[], Any], small: bool) -> Results:
    """Return the microseconds of a trainer's step with a callback that only waits, and without."""
    taken: dict[str, list[float]] = {"plain": [], "GaplessCallback, waiting": []}
    for _ in range(1 if small else 4):
        for name, own in taken.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            trainer([callback()] if name != "plain" else [])
            torch.cuda.synchronize()
            own.append((time.perf_counter() - began) / trainer_steps(small))
    best = {name: min(own) for name, own in taken.items()}
    return {name: [1e6 * best_seconds, best_seconds / best["plain"]] for name, best_seconds in best.items()}


def trainer_steps(small: bool) -> int:
    return 4 if small else _experiment.choose(300, 100)


class Data(torch.utils.data.Dataset[Any]):
    """Vectors and classes."""

    def __init__(self, keyed: bool, length: int) -> None:
        self.keyed, self.length = keyed, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if number >= self.length:
            raise IndexError
        x, label = torch.full((16,), number / self.length), number % 4
        return {"x": x, "labels": label} if self.keyed else (x, label)


def lightning(small: bool) -> Results:
    try:
        library = importlib.import_module("lightning.pytorch")
    except ModuleNotFoundError:
        library = importlib.import_module("pytorch_lightning")
    from gapless.integrations.lightning import GaplessCallback

    class Net(library.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    steps = trainer_steps(small)

    def trainer(callbacks: list[Any]) -> None:
        library_trainer = library.Trainer(
            max_steps=steps, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        library_trainer.fit(Net(), torch.utils.data.DataLoader(Data(False, 4 * steps), 4))

    return time_fit(
        trainer, lambda: GaplessCallback(wait=10**6, show=False, output=tempfile.mkdtemp()), small
    )


def huggingface(small: bool) -> Results:
    from transformers import Trainer, TrainingArguments

    from gapless.integrations.huggingface import GaplessCallback

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def forward(self, x: Any, labels: Any) -> Any:
            scores = self.layer(x)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    steps = trainer_steps(small)

    def trainer(callbacks: list[Any]) -> None:
        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        data = Data(True, 4 * steps)
        Trainer(model=Net(), args=arguments, train_dataset=data, callbacks=callbacks).train()

    return time_fit(
        trainer, lambda: GaplessCallback(wait=10**6, show=False, output=tempfile.mkdtemp()), small
    )


def kernels(call: Step, real: bool) -> int:
    """Return the device's kernels, copies and fills in a call; operators on the emulated device."""
    if not real:
        return int(_experiment.load_benchmark("metric_launches").count_launches(call))
    with _seen.profiler(True) as profiler:
        call()
        torch.cuda.synchronize()
    from torch.autograd import DeviceType

    return sum(event.device_type == DeviceType.CUDA for event in profiler.events())


def metrics(classes: int, small: bool) -> Results:
    """Return each library's launches, waits, CPU time and GPU time for an update of five metrics."""
    module = _experiment.load_benchmark("metric_launches")
    results_of: Results = {}
    for name, make in module.FIVE.items():
        try:
            update, compute, reset = make(classes)
            batch = module.libraries.batch(classes, 128, "cuda")
            for _ in range(3):
                update(*batch)
            waits = _seen.count_waits(lambda update=update, batch=batch: update(*batch))
            rows = in_turn({"update": lambda update=update, batch=batch: update(*batch)}, small)
            results_of[name] = {
                "kernels": kernels(lambda update=update, batch=batch: update(*batch), not small),
                "compute": kernels(compute, not small),
                "waits": waits,
                "launched": host_time(lambda update=update, batch=batch: update(*batch), small),
                "done": rows["update"][0],
            }
            reset()
        except Exception as error:  # a library that fails leaves the others
            results_of[name] = {"failed": f"{type(error).__name__}: {str(error)[:120]}"}
    return results_of


def host_time(call: Step, small: bool) -> float:
    """Return the CPU's microseconds for a call with nothing queued before it."""
    taken = []
    for _ in range(2 if small else 100):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1e6 * statistics.median(taken)


def part(name: str, emulated: bool) -> Any:
    with _experiment.device(emulated):
        if name.startswith("metrics "):
            return metrics(int(name.split()[1]), emulated)
        return globals()[name](emulated)


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    for name in STEPS:
        for way, (microseconds, ratio) in results.get(name, {}).items():
            rows.append([name, way, f"{microseconds:,.0f}", f"{ratio:.3f}"])
    text = _sheet.table(["", "step", "µs", "× plain"], rows)
    for classes in CLASSES:
        rows = []
        for name, result in results.get(f"metrics {classes}", {}).items():
            if "failed" in result:
                rows.append([name, result["failed"], *[""] * 4])
                wrong.append(f"{name}: {result['failed']}")
                continue
            times = (f"{result['launched']:.0f}", f"{result['done']:.0f}")
            rows.append([name, result["kernels"], result["compute"], result["waits"], *times])
        text += f"\n## A mean loss and four macro averages, {classes} classes, batches of 128\n\n"
        columns = ["", "kernels of an update", "of compute", "waits of an update"]
        text += _sheet.table([*columns, "µs of the CPU", "µs until the GPU is done"], rows)
    return text, wrong


def script() -> _experiment.Script:
    return _experiment.Script(
        __doc__, __file__, "What Gapless costs on a GPU",
        "medians; steps in blocks of 20, in turn, the device synchronized at both ends of a block",
        part, sheet, alone=[*(f"metrics {classes}" for classes in CLASSES), *STEPS], seconds=100,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
