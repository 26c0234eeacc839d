"""What it costs to say how long operators take: CPU time of the model of kernels, by operator of a check.

python benchmarks/estimate_cost.py            # print the sheet
python benchmarks/estimate_cost.py --write    # … and keep it in benchmarks/sheets
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import _sheet
import torch
from torch import nn
from torch.nn import functional

from gapless.analyze.estimate.programme_steps import recorded_steps
from gapless.analyze.estimate.timing import times_of
from gapless.analyze.kernel_times import cards, families, products
from gapless.analyze.kernel_times import operator_work as work
from gapless.analyze.run.steps import find_steps
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Session

MAX_MICROSECONDS = 2.0
"""Goal for one operator."""
STEPS = 6
MODULES: tuple[ModuleType, ...] = (cards, families, products, work)
"""Modules with caches."""


class Bert(nn.Module):
    """BERT-large on `nn.TransformerEncoder`."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True)
        self.words, self.places = nn.Embedding(30_522, 1024), nn.Embedding(512, 1024)
        self.body = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        self.head = nn.Linear(1024, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.body(self.words(ids) + self.places(places))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, taken: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(taken, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        short = nn.Conv2d(taken, 4 * width, 1, stride, bias=False)
        same = taken == 4 * width and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(short, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x), inplace=True)


def resnet_50() -> nn.Module:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    taken = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(taken, width, 1 if block else stride))
            taken = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def record_dry_check(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, **how: bool
) -> Session:
    """Return the session that `gapless check --dry` records for a few training steps."""
    with Emulator(EmulatorOptions("h100", programme=True, dry=True)) as emulator:
        model = make().cuda().train()
        optimizer = torch.optim.AdamW(model.parameters(), **how)
        inputs = torch.zeros(shape, dtype=dtype, device="cuda")
        labels = torch.zeros(shape[0], dtype=torch.long, device="cuda")
        for _ in range(STEPS):
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return emulator.session()


MODELS: dict[str, Callable[[], Session]] = {
    "BERT-large, 8 × 512": lambda: record_dry_check(Bert, (8, 512), torch.long),
    "ResNet-50, 32 × 224²": lambda: record_dry_check(resnet_50, (32, 3, 224, 224), torch.float32),
    "ResNet-50, AdamW tensor by tensor": lambda: record_dry_check(
        resnet_50, (32, 3, 224, 224), torch.float32, foreach=False
    ),
}


def clear_caches() -> None:
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, type(lru_cache(len))):
                value.cache_clear()


def microseconds(session: Session) -> tuple[int, int, float, float, float]:
    """Return the operators and distinct operators of the recorded steps, and microseconds of CPU time: on
    first sight, when seen before, and per operator over all steps."""
    programme = session.programme
    assert programme is not None
    operators = [
        entry
        for step in recorded_steps(programme, find_steps(session.marks))
        for entry in step
        if entry.kind == "operator"
    ]
    distinct = list(dict.fromkeys(operators))
    clear_caches()
    times = times_of(programme)
    began = time.thread_time()
    for entry in distinct:
        times.add_times(entry)
        times.doubt(entry)
    first_done = time.thread_time()
    for entry in operators:
        times.add_times(entry)
    ended = time.thread_time()
    first, again = first_done - began, ended - first_done
    each = [first / len(distinct), again / len(operators), (first + again) / len(operators)]
    return (len(operators), len(distinct), *(seconds * 1e6 for seconds in each))  # type: ignore[return-value]


def sheet(rounds: int) -> str:
    rows: list[list[object]] = []
    for name, make in MODELS.items():
        session = make()
        measured = [microseconds(session) for _ in range(rounds)]
        operators, distinct = measured[0][:2]
        first, again, all_of_them = (
            statistics.median(values[place] for values in measured) for place in (2, 3, 4)
        )
        rows.append([name, operators, distinct, f"{first:.1f}", f"{again:.2f}", f"{all_of_them:.2f}"])
    text = _sheet.header(
        "What an estimate of kernels costs",
        "python benchmarks/estimate_cost.py --write",
        f"operators of {STEPS} training steps in fp32, as `gapless check --dry` records them for an H100; "
        f"microseconds of CPU time for a kernel's time and its uncertainty, with nothing remembered before; "
        f"medians of {rounds}; the goal is {MAX_MICROSECONDS:g} µs for each operator of a check",
    )
    heads = ["model", "operators", "distinct", "first sight, µs", "seen before, µs", "each operator, µs"]
    return text + _sheet.table(heads, rows)


if __name__ == "__main__":
    _sheet.main(
        "estimate_cost",
        __doc__ or "",
        lambda options: sheet(options.rounds),
        rounds={"type": int, "default": 15},
    )
