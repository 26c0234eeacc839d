"""Whether predicted gains come in the order of published ones: changes that others measured on real GPUs.

    python benchmarks/ranking.py PROFILES            # a folder with the two public profiles of a ResNet-50
    python benchmarks/ranking.py PROFILES --write    # … and keeps the sheet

Each change is a step as it was and as it became, written anew after its publication's words. Both run on
the emulated GPU of the publication, at its sizes, and are estimated as `gapless check` estimates them, for a
CPU of usual speed. Of the profiles the first alone is asked: replayed with batches that are there in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import _sheet
import msgspec
import torch
from torch import nn
from torch.nn import functional

import gapless
from gapless.analyze.profile.building import profile_file
from gapless.analyze.profile.pricing import ASSUMPTION_PREFIX
from gapless.analyze.reports import report
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Session
from gapless.model.wording import three_digits

Step = Callable[[], None]
STEPS = 6


@dataclass(frozen=True)
class Change:
    """A published change: the GPU, and milliseconds of a step before and after."""

    name: str
    source: str
    gpu: str
    before: float
    after: float
    steps: Callable[[bool], Step]
    dry: bool = False
    one_warp: bool = False
    """Whether that torch reduced a loss's rows with 32 threads, as up to 2.7."""


# -- optimizers: all tensors of a list at once ---------------------------------------------------------


def resnet_101() -> Iterator[tuple[int, ...]]:
    """Yield the shapes of its parameters."""

    def convolution(out: int, taken: int, window: int) -> Iterator[tuple[int, ...]]:
        yield from ((out, taken, window, window), (out,), (out,))

    yield from convolution(64, 3, 7)
    taken = 64
    for width, blocks in ((64, 3), (128, 4), (256, 23), (512, 3)):
        for block in range(blocks):
            yield from convolution(width, taken, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if not block:
                yield from convolution(4 * width, taken, 1)
            taken = 4 * width
    yield from ((1000, taken), (1000,))


def optimizer_step(kind: type[torch.optim.Optimizer], listed: bool, **how: object) -> Step:
    parameters = [nn.Parameter(torch.zeros(shape, device="cuda")) for shape in resnet_101()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    stepping = kind(parameters, foreach=listed, **how)
    return lambda: stepping.step()


def clipping(count: int, listed: bool) -> Step:
    parameters = [nn.Parameter(torch.zeros(256, device="cuda")) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def step() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=listed)
        gapless.step()  # no optimizer marks its end

    return step


# -- syncs ---------------------------------------------------------------------------------------------


def read_loss(waits: bool) -> Step:
    """Return a step of a small network on batches of 50,000; the loss is read in each step, or summed on
    the device."""
    sizes = (7, 100, 100, 100, 1)
    layers: list[nn.Module] = []
    for taken, out in pairwise(sizes):
        layers += [nn.Linear(taken, out), nn.Tanh()]
    model = nn.Sequential(*layers[:-1]).cuda()
    stepping = torch.optim.Adam(model.parameters())
    data, wanted = torch.zeros(50_000, 7, device="cuda"), torch.zeros(50_000, 1, device="cuda")
    total = torch.zeros((), device="cuda")

    def step() -> None:
        loss = functional.huber_loss(model(data), wanted)
        stepping.zero_grad()
        loss.backward()
        stepping.step()
        if waits:
            loss.item()
        else:
            total.add_(loss.detach())

    return step


def masked_loss(masks: bool) -> Step:
    """Return a step of segmentation of 256 images of 256×256 in ten classes; logits are selected by a mask,
    or the loss gets `ignore_index`."""
    layers: list[nn.Module] = [nn.Conv2d(3, 10, 3, padding="same"), nn.ReLU()]
    for _ in range(10):
        layers += [nn.Conv2d(10, 10, 3, padding="same"), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(10, 10, 3, padding="same")).cuda()
    stepping = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    images = torch.zeros(256, 3, 256, 256, device="cuda")
    labels = torch.randint(-1, 10, (256, 256, 256), device="cuda")

    def loss(logits: torch.Tensor) -> torch.Tensor:
        if not masks:
            return functional.cross_entropy(logits, labels, ignore_index=-1)
        target = labels.clone()
        target[torch.nonzero(target == 9, as_tuple=True)] = -1
        single = torch.unique(target).numel() < 2
        kept = target != -1
        chosen = logits.permute(0, 2, 3, 1)[kept.unsqueeze(-1).expand(-1, -1, -1, 10)]
        mean = functional.cross_entropy(chosen.reshape(-1, 10), target[kept])
        return 0.0 * mean if single else mean

    def step() -> None:
        value = loss(model(images))
        stepping.zero_grad()
        value.backward()
        stepping.step()

    return step


def kind_of(name: str, **how: object) -> Callable[[bool], Step]:
    return lambda old: optimizer_step(getattr(torch.optim, name), not old, **how)


def clipping_of(count: int) -> Callable[[bool], Step]:
    return lambda old: clipping(count, not old)


_LISTS = "pytorch/pytorch#45299 (ResNet-101)"
_CLIP = "pytorch/pytorch#91846"
CHANGES = (
    Change("Adam on lists", _LISTS, "a100", 42.69, 10.16, kind_of("Adam")),
    Change("AdamW on lists", _LISTS, "a100", 51.38, 15.63, kind_of("AdamW")),
    Change("SGD on lists", _LISTS, "a100", 6.28, 4.40, kind_of("SGD", lr=1e-3)),
    Change("RMSprop on lists", _LISTS, "a100", 28.63, 5.89, kind_of("RMSprop")),
    Change("ASGD on lists", _LISTS, "a100", 21.67, 9.33, kind_of("ASGD")),
    Change("clipping on lists, 100 tensors", _CLIP, "a100", 0.955, 0.243, clipping_of(100)),
    Change("clipping on lists, 1,000 tensors", _CLIP, "a100", 9.375, 2.141, clipping_of(1000)),
    Change("no `loss.item()` in each step", "lnccbrown/LANfactory#120", "rtx3090", 1.97, 1.89, read_loss),
    Change("no masks in a loss", "C. Rand, PyTorch Model Performance Analysis, part 3", "a10g", 1300, 330,
           masked_loss, dry=True, one_warp=True),
)  # fmt: skip


def record(change: Change, old: bool) -> Session:
    """Return the session of a step as it was, or as it became."""
    with Emulator(EmulatorOptions(change.gpu, programme=True, dry=change.dry)) as emulator:
        step = change.steps(old)
        for _ in range(STEPS):
            step()
    session = emulator.session()
    if change.one_warp and session.programme is not None:
        entries = tuple(
            msgspec.structs.replace(entry, block=32) if entry.name.startswith("aten::nll_loss_") else entry
            for entry in session.programme.entries
        )
        programme = msgspec.structs.replace(session.programme, entries=entries)
        session = msgspec.structs.replace(session, programme=programme)
    return session


def estimate_step(change: Change, old: bool) -> float:
    """Return the estimated milliseconds of a step."""
    estimate = report(record(change, old)).estimate
    assert estimate is not None
    assert not estimate.refused, estimate.refused
    return estimate.step.likely / 1e6


Row = tuple[str, str, float, float, float, float]


def rows(folder: Path) -> Iterator[Row]:
    for change in CHANGES:
        yield (
            change.name,
            change.source,
            change.before,
            change.after,
            estimate_step(change, True),
            estimate_step(change, False),
        )
    paths = [next(folder.glob(f"kineto-resnet50_num_workers_{workers}-*")) for workers in (0, 4)]
    first, second = (
        profile_file(str(paths[0]), requested=[f"{ASSUMPTION_PREFIX}input"]),
        profile_file(str(paths[1])),
    )
    assert first.prices is not None
    assert first.prices.asked is not None
    saved = first.prices.asked.saved / first.steps.count
    before, after = first.steps.mean / 1e6, second.steps.mean / 1e6
    yield "four workers", "pytorch/kineto, profiles", before, after, before, before - saved / 1e6


def sheet(changes: list[Row]) -> str:
    text = _sheet.header(
        "The order of gains", "python benchmarks/ranking.py PROFILES --write",
        "changes that others published with a step's time before and after, in ms; beside it the estimate of "
        "both on an emulated GPU (a CPU of usual speed), or a replay of the first of two profiles. Where a "
        "publication does not name its GPU (optimizers, clipping), an A100 is assumed; the loss with masks "
        "is the one of the torch of then (2.0), its labels drawn as there, of which a dry run lets ten of "
        "eleven through",
    )  # fmt: skip
    changes = sorted(changes, key=lambda row: row[3] - row[2])
    table = [
        [name, source, *map(three_digits, (a, b, c, d)), *_gains(a, b), *_gains(c, d)]
        for name, source, a, b, c, d in changes
    ]
    heads = ["change", "published by", "before", "after", "before, est.", "after, est.", "gain", "of a step"]
    text += _sheet.table([*heads, "gain, est.", "of a step"], table)
    gained = _order_text([(a - b, c - d) for _, _, a, b, c, d in changes])
    parts = _order_text([(1 - b / a, 1 - d / c) for _, _, a, b, c, d in changes])
    text += f"\nIn the published order of the milliseconds that a step gains are {gained} in that order. "
    text += (
        "Steps are of 1 to 1,300 ms here, which makes that order easier than the one of what part of a step "
    )
    return text + f"is gained: there, {parts} in that order.\n"


def _order_text(gains: list[tuple[float, float]]) -> str:
    """Say how many pairs of published and estimated gains agree, and how many of them are in falling
    order."""
    pairs = list(combinations(gains, 2))
    right = sum((pair[0] - other[0]) * (pair[1] - other[1]) > 0 for pair, other in pairs)
    falling = [gain for _, gain in sorted(gains, reverse=True)]
    return f"{right} of {len(pairs)} pairs; {_in_order(falling)} of {len(gains)} changes stand"


def _gains(before: float, after: float) -> tuple[str, str]:
    return three_digits(before - after), f"{1 - after / before:.0%}"


def _in_order(gains: list[float]) -> int:
    """Return the length of the longest falling subsequence."""
    longest: list[int] = []
    for place, gain in enumerate(gains):
        longest.append(
            1 + max((longest[earlier] for earlier in range(place) if gains[earlier] > gain), default=0)
        )
    return max(longest, default=0)


if __name__ == "__main__":
    _sheet.main(
        "ranking", __doc__ or "", lambda options: sheet(list(rows(options.profiles))), profiles={"type": Path}
    )
