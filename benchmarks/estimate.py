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
from gapless.analyze.estimate.spread import time_spread
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.operator_work import work
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import gpus
from gapless.model.programme import GpuRates
from gapless.model.programme import gpu_limits as peaks
from gapless.trace.read import read

GPUS = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA PG509-210": "a100-80gb",
    "Tesla V100-DGXS-32GB": "v100-32gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
}
"""GPUs of the profiles, each with the most similar one that can be emulated."""
MODELS = {
    "segment-anything": "SAM", "kineto-resnet50": "ResNet-50, training", "param-dlrm": "DLRM, training",
    "particle": "particle transformer", "owlv2": "OWLv2", "bert": "BERT small", "nsfw": "ViT",
    "ao-tut": "ViT",
}  # fmt: skip
MIN_OPERATORS = 20


@dataclass(frozen=True)
class Profiled:
    """One profile with recorded shapes."""

    name: str
    model: str
    gpu: GpuRates
    operators: list[Sample]


def read_profiles(folder: Path) -> list[Profiled]:
    profiles = []
    for path in sorted(folder.glob("*.json.gz")):
        model = next((label for part, label in MODELS.items() if part in path.name), "")
        if not model:
            continue
        timeline = read(path)
        name = timeline.facts.gpus[0].name if timeline.facts.gpus else ""
        if name not in GPUS:
            continue
        operators = samples(path)
        if len(operators) >= MIN_OPERATORS:
            profiles.append(Profiled(path.name, model, peaks(gpus.find(GPUS[name])), operators))
    return profiles


# -- the device --------------------------------------------------------------------------------------


def device_rows(profiles: Sequence[Profiled]) -> list[list[object]]:
    rows: list[list[object]] = []
    for profile in profiles:
        guess = np.array([device_time(work(s.entry), profile.gpu) for s in profile.operators])
        before = np.array([kernel_time_before(s.entry, profile.gpu) for s in profile.operators])
        real = np.array([max(s.device, 500) for s in profile.operators])
        off = np.abs(np.log(guess / real))
        wide = np.array([1.2816 * time_spread(work(s.entry), profile.gpu) for s in profile.operators])
        rows.append(
            [
                _shorten(profile.name), profile.gpu.name.removeprefix("NVIDIA "), len(profile.operators),
                f"{real.sum() / 1e6:.2f}", f"{before.sum() / real.sum():.2f}",
                f"{guess.sum() / real.sum():.2f}", _quantiles(guess / real), f"{(off <= wide).mean():.0%}",
            ]
        )  # fmt: skip
    return rows


def family_rows(profiles: Sequence[Profiled]) -> list[list[object]]:
    rows: list[list[object]] = []
    families = {work(sample.entry).family for profile in profiles for sample in profile.operators}
    for family in sorted(families):
        guess, real = [], []
        for profile in profiles:
            for sample in profile.operators:
                request = work(sample.entry)
                if request.family == family:
                    guess.append(device_time(request, profile.gpu))
                    real.append(max(sample.device, 500))
        if real:
            ratio = np.array(guess) / np.array(real)
            total = f"{sum(guess) / sum(real):.2f}"
            rows.append([family, len(real), f"{sum(real) / 1e6:.1f}", total, _quantiles(ratio)])
    return rows


def _quantiles(ratio: np.ndarray) -> str:
    low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _shorten(name: str) -> str:
    return name.removesuffix(".json.gz")[:58]


# -- the host ----------------------------------------------------------------------------------------


def plain_models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return small CPU models; the operators' own work takes almost no time."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    stack = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16)) for _ in range(12)]
    return {
        "transformer, 4 layers": (nn.TransformerEncoder(layer, 4), torch.randn(1, 4, 32)),
        "MLP, 12 layers": (nn.Sequential(*stack), torch.randn(2, 16)),
    }


def plain_rows(repeats: int = 80) -> list[list[object]]:
    """Return rows of CPU microseconds per operator that would launch work, without a profiler or device."""
    rows: list[list[object]] = []
    for name, (model, data) in plain_models().items():
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            optimizer = kind(model.parameters(), lr=1e-3, foreach=True)
            times = np.array([_parts(model, data, optimizer) for _ in range(repeats)])[5:]
            forward, backward, step = np.quantile(times, 0.2, axis=0) * 1e6
            counts = _count_operators(model, data, kind)
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


def _count_operators(model: nn.Module, data: torch.Tensor, kind: type) -> tuple[int, int, int, int]:
    """Return the operators in forward, backward and the optimizer, and the optimizer's tensors."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        from copy import deepcopy

        on_device = deepcopy(model).cuda()
        optimizer = kind(on_device.parameters(), lr=1e-3, foreach=True)
        for _ in range(4):
            _parts(on_device, data.cuda(), optimizer)
    programme = emulator.session().programme
    assert programme is not None
    body = programme.bodies[programme.segments[-1].body]
    operators = [
        programme.entries[position] for position in body if programme.entries[position].kind == "operator"
    ]
    forward = sum(not operator.backward and not operator.optimizer for operator in operators)
    stepping = [operator for operator in operators if operator.optimizer]
    tensors = sum(operator.tensors for operator in stepping)
    return forward, sum(operator.backward for operator in operators), len(stepping), tensors


def host_rows(folder: Path) -> list[list[object]]:
    """Return the host times under the profiler, which slows the host."""
    rows: list[list[object]] = []
    for path in sorted(folder.glob("*.json.gz")):
        timeline = read(path)
        forward, backward, optimizer = host_times(timeline)
        if forward < 0 and backward < 0:
            continue
        stacks = "stacks" if timeline.facts.with_stack or "python_function" in timeline.names else ""
        rows.append(
            [_shorten(path.name), stacks, _microseconds(forward), _microseconds(backward),
             _microseconds(optimizer), _microseconds(launch_length(timeline))]
        )  # fmt: skip
    return rows


def _microseconds(time: int) -> str:
    return f"{time / 1e3:.1f}" if time >= 0 else "–"


# -- the sheet ---------------------------------------------------------------------------------------


def sheet(folder: Path, profiles: Sequence[Profiled]) -> str:
    """Return the sheet: the device's estimates first, then the host's."""
    text = _sheet.header(
        "Estimates without a GPU, against real profiles",
        "python benchmarks/estimate.py FOLDER --write",
        "public profiles with recorded shapes, of GPUs that can be emulated; times of kernels; "
        "estimated / real",
    )
    parts = (_device_part(profiles), _kernels_part(folder, profiles), _latencies_part(folder))
    return text + "".join(parts) + _host_part(folder)


def _device_part(profiles: Sequence[Profiled]) -> str:
    text = "## The device, by profile\n\n"
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
    return text + _sheet.table(["family", "operators", "real, ms", "together", "each"], family_rows(profiles))


def _kernels_part(folder: Path, profiles: Sequence[Profiled]) -> str:
    """Return the tables on single kernels: the shortest, the A100s' speed, losses in one block."""
    text = "\n## The shortest kernels, by GPU\n\n"
    text += (
        "Microseconds that a quarter of a kind's kernels stay below, in the mean over the other profiles in\n"
        "the folder; times of some are whole microseconds.\n\n"
    )
    names = frozenset(profile.name for profile in profiles)
    text += _sheet.table(["GPU", *small.KINDS], small.shortest(folder, names))
    text += "\n## How fast the A100s of these profiles were\n\n"
    text += (
        "The shortest elementwise kernel in microseconds, TFLOP/s of products in 16 bits, and GB/s of\n"
        "elementwise operators on tensors laid out alike, of those over 100 µs a tenth is faster. The A100\n"
        "of three profiles ran far below the clocks of the others. Its name does not tell, so that these\n"
        "three are estimated as too fast; `--calibrate` with such a profile makes up for it.\n\n"
    )
    rows = [
        [_shorten(profile.name), *small.speeds(folder / profile.name, profile.operators)]
        for profile in profiles
        if "A100" in profile.gpu.name
    ]
    text += _sheet.table(["profile", "shortest, µs", "products, TFLOP/s", "elementwise, GB/s"], rows)
    text += "\n## Losses over classes, in one block of 32 threads\n\n"
    text += (
        "Each thread takes every 32nd row, one after the other: forward it reads a label, then the logit\n"
        "that this names; backward a label. Microseconds in other profiles; what a further turn takes, by\n"
        "the number of such accesses, is `ACCESS`.\n\n"
    )
    return text + _sheet.table(["profile", "GPU", "rows", "forward", "backward"], small.one_block(folder))


def _latencies_part(folder: Path) -> str:
    rows = latencies(folder)
    launch, back = spreads(rows)
    text = "\n## Latencies\n\n"
    text += (
        "Microseconds from the beginning of a launch to its kernel, on an idle stream, and from the end of\n"
        "work to the end of a wait for it; medians. Standard deviations of the logarithm between profiles:\n"
        f"{launch:.2f} and {back:.2f}.\n\n"
    )
    cells = [
        [name, gpu, *("–" if np.isnan(latency) else f"{latency:.1f}" for latency in both)]
        for name, gpu, *both in rows
    ]
    return text + _sheet.table(["profile", "GPU", "launch", "return"], cells)


def _host_part(folder: Path) -> str:
    text = "\n## The host without a profiler, on this machine\n\n"
    text += (
        "Microseconds from one operator that would launch work to the next, without the launch itself: the\n"
    )
    text += "same Python, dispatcher and autograd on CPU tensors of few elements (20 % quantile).\n\n"
    text += _sheet.table(["model", "forward", "backward", "optimizer, for each tensor"], plain_rows())
    text += "\n## The host under the profiler, from the profiles\n\n"
    text += "Microseconds from one operator that launches work to the next, where the host does not wait.\n\n"
    return text + _sheet.table(
        ["profile", "recorded", "forward", "backward", "optimizer", "launching call, median"],
        host_rows(folder),
    )


if __name__ == "__main__":
    _sheet.main(
        "estimate",
        __doc__ or "",
        lambda options: sheet(options.folder, read_profiles(options.folder)),
        folder={"type": Path},
    )
