"""How far off estimates without a GPU are, on profiles that none of their constants were fitted to.

    python benchmarks/estimate.py FOLDER            # compare with the profiles in it that recorded shapes
    python benchmarks/estimate.py FOLDER --write    # writes benchmarks/sheets/estimate.md

For every operator of every profile of a known GPU, the time that `gapless.analyze.estimate` gives it beside
the time it took; and what the formulas before gave it, whose constants *were* fitted to these profiles.
Then what the host needs: measured here without a profiler, and from the profiles, with one.
`kernel_times.py` fits the constants, to tables of single kernels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import _kernel_small as small
import _sheet
import numpy as np
import torch
from _kernel_before import kernel_time_before
from _latencies import latencies, spreads
from _operators import Sample, samples
from torch import nn

from gapless.analyze.estimate.measure import host_times, launch_length
from gapless.analyze.estimate.spread import spread
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.operator_work import work
from gapless.emulation.emulator import Emulator
from gapless.model import gpus
from gapless.model.programme import Gpu
from gapless.model.programme import sheet as peaks
from gapless.trace.read import read

GPUS = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA PG509-210": "a100-80gb",
    "Tesla V100-DGXS-32GB": "v100-32gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
}
"""GPUs of profiles, and the one that is emulated most like them."""
MODELS = {
    "segment-anything": "SAM", "kineto-resnet50": "ResNet-50, training", "param-dlrm": "DLRM, training",
    "particle": "particle transformer", "owlv2": "OWLv2", "bert": "BERT small", "nsfw": "ViT",
    "ao-tut": "ViT",
}  # fmt: skip
FEWEST = 20


@dataclass(frozen=True)
class Profiled:
    """One profile with recorded shapes."""

    name: str
    model: str
    gpu: Gpu
    operators: list[Sample]


def profiled(folder: Path) -> list[Profiled]:
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        model = next((told for part, told in MODELS.items() if part in path.name), "")
        if not model:
            continue
        timeline = read(path)
        name = timeline.facts.gpus[0].name if timeline.facts.gpus else ""
        if name not in GPUS:
            continue
        operators = samples(path)
        if len(operators) >= FEWEST:
            found.append(Profiled(path.name, model, peaks(gpus.find(GPUS[name])), operators))
    return found


# -- the device --------------------------------------------------------------------------------------


def device_rows(profiles: Sequence[Profiled]) -> list[list[object]]:
    rows: list[list[object]] = []
    for one in profiles:
        guess = np.array([device_time(work(s.entry), one.gpu) for s in one.operators])
        before = np.array([kernel_time_before(s.entry, one.gpu) for s in one.operators])
        real = np.array([max(s.device, 500) for s in one.operators])
        off = np.abs(np.log(guess / real))
        wide = np.array([1.2816 * spread(work(s.entry), one.gpu) for s in one.operators])
        rows.append(
            [
                _short(one.name), one.gpu.name.removeprefix("NVIDIA "), len(one.operators),
                f"{real.sum() / 1e6:.2f}", f"{before.sum() / real.sum():.2f}",
                f"{guess.sum() / real.sum():.2f}", _spread(guess / real), f"{(off <= wide).mean():.0%}",
            ]
        )  # fmt: skip
    return rows


def family_rows(profiles: Sequence[Profiled]) -> list[list[object]]:
    rows: list[list[object]] = []
    families = {work(sample.entry).family for one in profiles for sample in one.operators}
    for family in sorted(families):
        guess, real = [], []
        for one in profiles:
            for sample in one.operators:
                asked = work(sample.entry)
                if asked.family == family:
                    guess.append(device_time(asked, one.gpu))
                    real.append(max(sample.device, 500))
        if real:
            ratio = np.array(guess) / np.array(real)
            total = f"{sum(guess) / sum(real):.2f}"
            rows.append([family, len(real), f"{sum(real) / 1e6:.1f}", total, _spread(ratio)])
    return rows


def _spread(ratio: np.ndarray) -> str:
    low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _short(name: str) -> str:
    return name.removesuffix(".json.gz")[:58]


# -- the host ----------------------------------------------------------------------------------------


def plain_models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Small models on the CPU: their operators take next to no time for themselves."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    stack = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16)) for _ in range(12)]
    return {
        "transformer, 4 layers": (nn.TransformerEncoder(layer, 4), torch.randn(1, 4, 32)),
        "MLP, 12 layers": (nn.Sequential(*stack), torch.randn(2, 16)),
    }


def plain_rows(repeats: int = 80) -> list[list[object]]:
    """Microseconds of CPU time for one operator that would launch work, without a profiler and without a
    device."""
    rows: list[list[object]] = []
    for name, (model, data) in plain_models().items():
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            optimizer = kind(model.parameters(), lr=1e-3, foreach=True)
            times = np.array([_parts(model, data, optimizer) for _ in range(repeats)])[5:]
            forward, backward, step = np.quantile(times, 0.2, axis=0) * 1e6
            counts = _counted(model, data, kind)
            rows.append(
                [f"{name}, {kind.__name__}", f"{forward / counts[0]:.1f}", f"{backward / counts[1]:.1f}",
                 f"{step / counts[3]:.2f}"]
            )  # fmt: skip
    return rows


def _parts(
    model: nn.Module, data: torch.Tensor, optimizer: torch.optim.Optimizer
) -> tuple[float, float, float]:
    moments = [time.process_time()]
    loss = model(data).square().mean()
    moments.append(time.process_time())
    loss.backward()
    moments.append(time.process_time())
    optimizer.step()
    optimizer.zero_grad()
    moments.append(time.process_time())
    a, b, c = (end - begin for begin, end in pairwise(moments))
    return a, b, c


def _counted(model: nn.Module, data: torch.Tensor, kind: type) -> tuple[int, int, int, int]:
    """Operators in forward, backward and the optimizer, and the tensors that the last are given."""
    with Emulator(programme=True) as emulator:
        from copy import deepcopy

        on_device = deepcopy(model).cuda()
        optimizer = kind(on_device.parameters(), lr=1e-3, foreach=True)
        for _ in range(4):
            _parts(on_device, data.cuda(), optimizer)
    programme = emulator.session().programme
    assert programme is not None
    body = programme.bodies[programme.segments[-1].body]
    asked = [
        programme.entries[position] for position in body if programme.entries[position].kind == "operator"
    ]
    forward = sum(not one.backward and not one.optimizer for one in asked)
    stepping = [one for one in asked if one.optimizer]
    tensors = sum(one.tensors for one in stepping)
    return forward, sum(one.backward for one in asked), len(stepping), tensors


def host_rows(folder: Path) -> list[list[object]]:
    """The same from profiles, which slow the host."""
    rows: list[list[object]] = []
    for path in sorted(folder.glob("*.json.gz")):
        timeline = read(path)
        forward, backward, optimizer = host_times(timeline)
        if forward < 0 and backward < 0:
            continue
        stacks = "stacks" if timeline.facts.with_stack or "python_function" in timeline.names else ""
        rows.append(
            [_short(path.name), stacks, _micro(forward), _micro(backward), _micro(optimizer),
             _micro(launch_length(timeline))]
        )  # fmt: skip
    return rows


def _micro(time: int) -> str:
    return f"{time / 1e3:.1f}" if time >= 0 else "–"


# -- the sheet ---------------------------------------------------------------------------------------


def sheet(folder: Path, profiles: Sequence[Profiled]) -> str:
    text = _sheet.header(
        "Estimates without a GPU, against real profiles",
        "python benchmarks/estimate.py FOLDER --write",
        "public profiles with recorded shapes, of GPUs that can be emulated; times of kernels; "
        "estimated / real",
    )
    text += "## The device, by profile\n\n"
    text += (
        "Estimated / real: all operators together, with the formulas before and now; one operator, median\n"
        "(10 % to 90 %); how many operators lie in the interval that four fifths should.\n\n"
    )
    rows = device_rows(profiles)
    text += _sheet.table(
        ["profile", "GPU", "operators", "real, ms", "before", "now", "each, now", "in the interval"], rows
    )
    near = sum(0.8 <= float(str(row[5])) <= 1.25 for row in rows)
    text += f"\nAll operators together within 0.8 to 1.25: {near} of {len(rows)}.\n"
    text += "\n## The device, by family\n\n"
    text += _sheet.table(["family", "operators", "real, ms", "together", "each"], family_rows(profiles))
    text += "\n## The shortest kernels, by GPU\n\n"
    text += (
        "Microseconds that a quarter of a kind's kernels stay below, in the mean over the other profiles in\n"
        "the folder; times of some are whole microseconds.\n\n"
    )
    taken = frozenset(one.name for one in profiles)
    text += _sheet.table(["GPU", *small.KINDS], small.shortest(folder, taken))
    text += "\n## How fast the A100s of these profiles were\n\n"
    text += (
        "The shortest elementwise kernel in microseconds, TFLOP/s of products in 16 bits, and GB/s of\n"
        "elementwise operators on tensors laid out alike, of those over 100 µs a tenth is faster. The A100\n"
        "of three profiles ran far below the clocks of the others. Its name does not tell, so that these\n"
        "three are estimated as too fast; `--calibrate` with such a profile makes up for it.\n\n"
    )
    rows = [
        [_short(one.name), *small.speeds(folder / one.name, one.operators)]
        for one in profiles
        if "A100" in one.gpu.name
    ]
    text += _sheet.table(["profile", "shortest, µs", "products, TFLOP/s", "elementwise, GB/s"], rows)
    text += "\n## Losses over classes, in one block of 32 threads\n\n"
    text += (
        "Each thread takes every 32nd row, one after the other: forward it reads a label, then the logit\n"
        "that this names; backward a label. Microseconds in other profiles; what a further turn takes, by\n"
        "the number of such accesses, is `ACCESS`.\n\n"
    )
    text += _sheet.table(["profile", "GPU", "rows", "forward", "backward"], small.one_block(folder))
    text += "\n## Latencies\n\n"
    found = latencies(folder)
    launch, back = spreads(found)
    text += (
        "Microseconds from the beginning of a launch to its kernel, on an idle stream, and from the end of\n"
        "work to the end of a wait for it; medians. Standard deviations of the logarithm between profiles:\n"
        f"{launch:.2f} and {back:.2f}.\n\n"
    )
    told = [
        [name, gpu, *("–" if np.isnan(one) else f"{one:.1f}" for one in both)] for name, gpu, *both in found
    ]
    text += _sheet.table(["profile", "GPU", "launch", "return"], told)
    text += "\n## The host without a profiler, on this machine\n\n"
    text += (
        "Microseconds from one operator that would launch work to the next, without the launch itself: the\n"
    )
    text += "same Python, dispatcher and autograd on CPU tensors of few elements (20 % quantile).\n\n"
    text += _sheet.table(["model", "forward", "backward", "optimizer, for each tensor"], plain_rows())
    text += "\n## The host under the profiler, from the profiles\n\n"
    text += "Microseconds from one operator that launches work to the next, where the host does not wait.\n\n"
    text += _sheet.table(
        ["profile", "recorded", "forward", "backward", "optimizer", "launching call, median"],
        host_rows(folder),
    )
    return text


if __name__ == "__main__":
    _sheet.main(
        "estimate",
        __doc__ or "",
        lambda asked: sheet(asked.folder, profiled(asked.folder)),
        folder={"type": Path},
    )
