"""What each fix gains: the step before and after it on a GPU, and the gain that was predicted without one.

    python benchmarks/gpu/fixes.py                 # on a machine with a GPU: writes fixes.md
    python benchmarks/gpu/fixes.py --self-check    # anywhere: small, on the emulated device

A training step with one thing in it that a rule knows, and with what the rule says to write instead, in
turn. Predicted is the gain that the estimate of `gapless check` gives for leaving out these waits, for a GPU
of this kind. Then every operation of gapless.ops beside the line that it replaces (benchmarks/ops.py).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import _experiment
import _seen
import _sheet
import torch
from _experiment import Results
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[], object]
BLOCKS = _experiment.choose((21, 20), (9, 10))
"""Blocks of each version, and steps of a block."""
SIZE, SMALL = 1024, 32
"""Features of a layer; those in a self-check."""


class Setting:
    """A classifier on the device with a batch; `size` features."""

    def __init__(self, size: int) -> None:
        torch.manual_seed(0)
        body = [layer for _ in range(8) for layer in (nn.Linear(size, size), nn.ReLU())]
        self.model = nn.Sequential(*body, nn.Linear(size, 64)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(512, size, device="cuda")
        self.y = torch.randint(64, (512,), device="cuda")
        self.host = torch.randn(512, size)
        self.pinned = self.host.pin_memory()
        self.mask = torch.rand(512, device="cuda") > 0.3
        self.weights = [0.5 + number / 64 for number in range(64)]
        self.on_device = torch.tensor(self.weights, device="cuda")
        self.total, self.sum = 0.0, torch.zeros((), device="cuda")
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loss_of: Callable[[Tensor], Tensor], x: Tensor | None = None) -> Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.model(self.x if x is None else x))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def plain(self, out: Tensor) -> Tensor:
        return functional.cross_entropy(out, self.y)


def masked(s: Setting, fixed: bool) -> None:
    from gapless import ops

    if fixed:
        s.train(lambda out: ops.cross_entropy(out, s.y, mask=s.mask))
    else:
        s.train(lambda out: functional.cross_entropy(out[s.mask], s.y[s.mask]))


def logged(s: Setting) -> None:
    s.total += s.train(s.plain).item()


def summed(s: Setting) -> None:
    s.sum += s.train(s.plain)


def nan_checked(s: Setting) -> None:
    if not torch.isfinite(s.train(s.plain)):
        raise RuntimeError


def nan_counted(s: Setting) -> None:
    s.sum += ~torch.isfinite(s.train(s.plain))


def weighted(s: Setting, fixed: bool) -> None:
    weight = s.on_device if fixed else torch.tensor(s.weights, device="cuda")
    s.train(lambda out: functional.cross_entropy(out, s.y, weight))


def clipped(s: Setting, fixed: bool) -> None:
    s.train(s.plain)
    norm = nn.utils.clip_grad_norm_(s.model.parameters(), 1.0, error_if_nonfinite=not fixed)
    s.sum += norm


def encoded(s: Setting, fixed: bool) -> None:
    def loss(out: Tensor) -> Tensor:
        target = functional.one_hot(s.y) if not fixed else s.y[:, None] == torch.arange(64, device="cuda")
        return -(out.log_softmax(1) * target).sum(1).mean()

    s.train(loss)


def emptied(s: Setting, fixed: bool) -> None:
    s.train(s.plain)
    if not fixed:
        torch.cuda.empty_cache()


def synchronized(s: Setting, fixed: bool) -> None:
    s.train(s.plain)
    if not fixed:
        torch.cuda.synchronize()


CASES: dict[str, tuple[str, Callable[[Setting], object], Callable[[Setting], object]]] = {
    "loss.item() in every step": ("GAP101", logged, summed),
    "condition on the loss": ("GAP102", nan_checked, nan_counted),
    "boolean mask": ("GAP112", lambda s: masked(s, False), lambda s: masked(s, True)),
    "one_hot": ("GAP117", lambda s: encoded(s, False), lambda s: encoded(s, True)),
    "batch from pageable memory": (
        "GAP120",
        lambda s: s.train(s.plain, s.host.to("cuda")),
        lambda s: s.train(s.plain, s.pinned.to("cuda", non_blocking=True)),
    ),
    "constant made in the step": ("GAP121", lambda s: weighted(s, False), lambda s: weighted(s, True)),
    "synchronize() each step": ("GAP130", lambda s: synchronized(s, False), lambda s: synchronized(s, True)),
    "empty_cache() in the step": ("GAP132", lambda s: emptied(s, False), lambda s: emptied(s, True)),
    "clip_grad_norm_ that raises": ("GAP143", lambda s: clipped(s, False), lambda s: clipped(s, True)),
}  # fmt: skip


def in_turn(steps: list[Step], small: bool) -> list[float]:
    """Return the median milliseconds of each step, and the interval of their differences (10 % to 90 %)."""
    rounds, block = (2, 1) if small else BLOCKS
    taken: list[list[float]] = [[] for _ in steps]
    for turn in range(rounds + 1):
        for own, step in zip(taken, steps, strict=True):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(block):
                step()
            torch.cuda.synchronize()
            if turn:
                own.append(1e3 * (time.perf_counter() - began) / block)
    gains = sorted(a - b for a, b in zip(*taken, strict=True))
    return [*map(statistics.median, taken), gains[len(gains) // 10], gains[-1 - len(gains) // 10]]


def both(steps: list[Step], small: bool) -> Results:
    """Return times and waits of two versions, or how they failed."""
    try:
        return {"times": in_turn(steps, small), "waits": [_seen.count_waits(step) for step in steps]}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error)[:120]}"}


def fixes(small: bool) -> Results:
    outcomes: Results = {}
    for name, (_, wrong, right) in CASES.items():
        setting = Setting(SMALL if small else SIZE)
        steps: list[Step] = [lambda version=version, s=setting: version(s) for version in (wrong, right)]
        outcomes[name] = both(steps, small)
    return outcomes


def predict(name: str, gpu: str, size: int) -> Results:
    """Return the waits of both versions, and the predicted gain (ms) of removing those of the first."""
    from gapless.analyze.estimate.estimate import estimate
    from gapless.analyze.reports import report
    from gapless.analyze.run.steps import find_steps
    from gapless.emulation.emulator import Emulator
    from gapless.emulation.options import EmulatorOptions

    _, wrong, right = CASES[name]
    prediction: Results = {"waits": [], "steps": []}
    for version in (wrong, right):
        with Emulator(EmulatorOptions(gpu=gpu, programme=True)) as emulator:
            setting = Setting(size)
            for _ in range(8):
                version(setting)
        session = emulator.session()
        run_report = report(session)
        prediction["waits"].append(run_report.steps.waits_per_step)
        if run_report.estimate is not None and not run_report.estimate.refused:
            step = run_report.estimate.step
            prediction["steps"].append([duration / 1e6 for duration in (step.least, step.likely, step.most)])
        if version is wrong:
            every = list(range(len(session.sites)))
            priced = estimate(session, find_steps(session.marks), {0: every}) if every else None
            each = priced.prices.each if priced is not None else ()
            prediction["gain"] = each[0].alone / 1e6 if each else 0.0
    return prediction


def operations(small: bool) -> Results:
    """Compare each operation of gapless.ops with the line it replaces, forward and backward."""
    module = _experiment.load_benchmark("ops")
    outcomes: Results = {}
    for case in module.CASES[::6] if small else module.CASES[:: _experiment.choose(1, 3)]:
        for density in (0.1, 0.9) if case.masked else (0.5,):
            data = module.Data(64 if small else 65_536, density, "cuda")
            calls = (case.theirs, case.ours)
            steps: list[Step] = [
                lambda call=call, data=data: module.run_with_backward(call, data) for call in calls
            ]
            outcomes[f"{case.name} {density}"] = both(steps, small)
    return outcomes


def part(name: str, emulated: bool) -> Any:
    way, _, which = name.partition(" ")
    if way == "predicted":
        return predict(which, _experiment.gpu_name(), SMALL if emulated else SIZE)
    with _experiment.device(emulated):
        return (operations if way == "operations" else fixes)(emulated)


def sheet(results: Results) -> tuple[str, list[str]]:
    rows: list[list[object]] = []
    wrong = []
    for name, real in results.get("fixes", {}).items():
        said = results.get(f"predicted {name}", {"waits": ["?", "?"], "gain": -1.0})
        if "failed" in real:
            wrong.append(f"{name}: {real['failed']}")
            continue
        before, after, least, most = real["times"]
        waits = [f"{count} → {other}" for count, other in (real["waits"], said["waits"])]
        times = (f"{before:.3f} → {after:.3f}", f"{before - after:.3f} ({least:.3f}–{most:.3f})")
        rows.append([name, CASES[name][0], *waits, *times, f"{said['gain']:.3f}"])
        if said["waits"][1] or not said["waits"][0]:
            wrong.append(f"{name}: waits are predicted as {waits[1]}")
    columns = ["what", "rule", "syncs by debug mode", "predicted", "ms a step", "gain", "gain predicted"]
    text = _sheet.table(columns, rows) + "\n## gapless.ops beside the lines they replace\n\n"
    rows = []
    for name, row in results.get("operations", {}).items():
        if "failed" in row:
            wrong.append(f"{name}: {row['failed']}")
            continue
        before, after, _, _ = row["times"]
        waits = [f"{row['waits'][0]} → {row['waits'][1]}"]
        rows.append([*name.rsplit(" ", 1), *waits, f"{before:.3f} → {after:.3f}", f"{before / after:.2f}×"])
        if row["waits"][1]:
            wrong.append(f"{name} waits")
    text += _sheet.table(["operation", "density", "syncs", "ms", "faster"], rows)
    return text + "".join(f"\n- {problem}\n" for problem in wrong), wrong


def script() -> _experiment.Script:
    rounds, block = BLOCKS
    return _experiment.Script(
        __doc__, __file__, "What fixes gain on a GPU",
        f"before and after in turn, {rounds} blocks of {block} steps, medians, and what four in five "
        "differences are; 65,536 rows for operations, forward and backward",
        part, sheet, [f"predicted {name}" for name in CASES], ["fixes", "operations"], 100,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(script().main())
