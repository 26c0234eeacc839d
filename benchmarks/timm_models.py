"""How far off a check without a GPU is of vision models in 16 bits, whose rates timm's author publishes.

    pip install timm
    git clone https://github.com/huggingface/pytorch-image-models
    python benchmarks/timm_models.py pytorch-image-models            # print the sheet
    python benchmarks/timm_models.py pytorch-image-models --write    # … and keep it in benchmarks/sheets

``results/benchmark-*.csv`` there (Apache-2.0) hold milliseconds of a step of some 1,600 models under autocast
to float16, forward or in training with SGD, as ``benchmark.py`` there measures them. Of each of its families
of models a few are chosen by a hash of their names, built, run on the emulated device without values, and
estimated as `gapless check --dry` does. Constants of `gapless.analyze.estimate` that no table of single
kernels tells were fitted to the RTX 3090 and 4090 of one half of the models, where `Setting.fitted` says so;
the other half, other GPUs and other settings are told apart. Which kinds of kernels were missing was seen in
both halves of those settings.
"""

from __future__ import annotations

import csv
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import _sheet
import msgspec
import numpy as np
import timm
import torch
from timm.models._registry import _model_to_module
from timm.optim import create_optimizer_v2

import gapless
from gapless.analyze.estimate.estimate import estimate
from gapless.analyze.run.steps import find_steps
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Session, gpus
from gapless.model.estimate import Estimate
from gapless.model.programme import GpuRates, gpu_limits

PRO = GpuRates(
    name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", bandwidth=1792, fp32=110, tf32=219.5,
    fp16=438.9, bf16=438.9, l2_bytes=128 << 20, multiprocessors=188, pcie=64, clock=2280,
)  # fmt: skip


RESULTS = "https://github.com/huggingface/pytorch-image-models/tree/main/results"


class Setting(NamedTuple):
    """One of timm's files: its GPU, its torch, channels last, training.

    `fused`: attention is one operator there; `fitted`: half of its models were used in the fit.
    """

    file: str
    gpu: GpuRates
    label: str
    last: bool = False
    trains: bool = False
    fused: bool = True
    fitted: bool = False


def _settings() -> Iterator[Setting]:
    old, new = gpu_limits(gpus.find("rtx3090")), gpu_limits(gpus.find("rtx4090"))
    label = "training, NCHW, torch 1.12"
    yield Setting("train-amp-nchw-pt112-cu113-rtx3090", old, label, False, True, False, fitted=True)
    label = "training, NHWC, torch 1.12"
    yield Setting("train-amp-nhwc-pt112-cu113-rtx3090", old, label, True, True, False)
    yield Setting("infer-amp-nhwc-pt240-cu124-rtx3090", old, "forward, NHWC, torch 2.4", True, fitted=True)
    yield Setting("infer-amp-nchw-pt240-cu124-rtx3090", old, "forward, NCHW, torch 2.4")
    yield Setting("infer-amp-nchw-pt291-cu128-4090", new, "forward, NCHW, torch 2.9", fitted=True)
    newest = gpu_limits(gpus.find("rtx5090"))
    yield Setting("infer-amp-nchw-pt291-cu130-5090", newest, "forward, NCHW, torch 2.9")
    yield Setting("infer-amp-nchw-pt291-cu130-pro6000maxq", PRO, "forward, NCHW, torch 2.9")


class Measured(NamedTuple):
    """Milliseconds of a step at this batch size."""

    ms: float
    batch: int


Key = tuple[str, int]
"""A model without its tag, and the side of an image."""


def read_published(folder: Path, setting: Setting) -> dict[Key, Measured]:
    """Return the measurements in a file."""
    kind = "train" if setting.trains else "infer"
    measured = {}
    with (folder / "results" / f"benchmark-{setting.file}.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            name, side = line["model"].split(".")[0], int(line[f"{kind}_img_size"])
            batch = int(float(line[f"{kind}_batch_size"]))
            measured[name, side] = Measured(float(line[f"{kind}_step_time"]), batch)
    return measured


FOLDED = ("repvgg",)
"""Models that recent timm folds before timing inference."""
CHOSEN_BY = ("train-amp-nchw", "infer-amp-nchw-pt240-cu124-rtx3090", "infer-amp-nchw-pt291")


def choose_models(folder: Path) -> list[Key]:
    """Return every second of up to three models per family that these files share, chosen by hashes of
    their names."""
    tables = [
        read_published(folder, setting) for setting in _settings() if setting.file.startswith(CHOSEN_BY)
    ]
    families: defaultdict[str, list[Key]] = defaultdict(list)
    for key in sorted(set.intersection(*map(set, tables))):
        if key[0] in _model_to_module:
            families[_model_to_module[key[0]]].append(key)
    keys_chosen: list[Key] = []
    for _, keys in sorted(families.items()):
        keys.sort(key=lambda key: zlib.crc32(key[0].encode()))
        keys_chosen += keys[: 3 if len(keys) > 12 else 2 if len(keys) > 5 else 1]
    return keys_chosen[::2]


def half(name: str) -> int:
    """Return the half of the models this is in: 0 was fitted, 1 was not."""
    return zlib.crc32(f"x{name}".encode()) % 2


@cache
def record_steps(name: str, side: int, batch: int, last: bool, trains: bool, fused: bool) -> Session:
    """Record a few steps as timm's ``benchmark.py`` runs them, on the emulated device in a dry run."""
    timm.layers.set_fused_attn(fused)
    torch.backends.cuda.matmul.allow_tf32 = True
    order = torch.channels_last if last else torch.contiguous_format
    with (
        Emulator(EmulatorOptions("b200", programme=True, dry=True)) as emulator,
        torch.inference_mode(not trains),
    ):
        model = _create_model(name, side).cuda().to(memory_format=order).train(trains)
        images = torch.randn(batch, 3, side, side, device="cuda").to(memory_format=order)
        optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4) if trains else None
        for _ in range(3):
            _step(model, images, optimizer)
            gapless.step()
    return emulator.session()


def _create_model(name: str, side: int) -> torch.nn.Module:
    try:
        return timm.create_model(name, img_size=side)  # type: ignore[no-any-return]
    except TypeError:  # takes images of any size
        return timm.create_model(name)  # type: ignore[no-any-return]


def _step(model: torch.nn.Module, images: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(images)
        if optimizer is not None:
            logits = logits[0] if isinstance(logits, tuple) else logits
            wanted = torch.empty(len(logits), device="cuda", dtype=torch.long).random_(1000)
            torch.nn.functional.cross_entropy(logits, wanted).backward()
    if optimizer is not None:
        optimizer.step()


def estimate_on(session: Session, gpu: GpuRates) -> Estimate:
    programme = session.programme
    assert programme is not None
    session = msgspec.structs.replace(session, programme=msgspec.structs.replace(programme, gpu=gpu))
    estimated = estimate(session, find_steps(session.marks), {})
    assert estimated is not None
    return estimated


class Comparison(NamedTuple):
    """One model in one setting: estimated over published, and whether the interval holds the latter."""

    setting: Setting
    key: Key
    ratio: float
    inside: bool

    @property
    def kept(self) -> bool:
        """Whether no constant was fitted to it."""
        return bool(half(self.key[0])) or not self.setting.fitted


def compare_all(folder: Path) -> Iterator[Comparison]:
    tables = {setting: read_published(folder, setting) for setting in _settings()}
    for key in choose_models(folder):
        for setting, table in tables.items():
            folded = key[0].startswith(FOLDED) and not setting.trains
            if key not in table or folded:
                continue
            ms, batch = table[key]
            session = record_steps(*key, batch, setting.last, setting.trains, setting.fused)
            estimated = estimate_on(session, setting.gpu)
            if estimated.refused:
                continue
            step = estimated.step
            yield Comparison(setting, key, step.likely / ms / 1e6, step.least <= ms * 1e6 <= step.most)
        record_steps.cache_clear()


def sheet_of(compared: Sequence[Comparison]) -> str:
    text = _sheet.header(
        "Vision models in 16 bits, against published rates",
        "python benchmarks/timm_models.py FOLDER --write",
        "milliseconds of a step under autocast to float16 as timm's author publishes them "
        f"([pytorch-image-models, results]({RESULTS}), Apache-2.0) beside the estimate of `gapless check "
        "--dry` for a CPU of usual speed, and its interval; the torch that is named above builds the models, "
        "whatever was measured",
    )
    heads = ["GPU", "setting", "models", "off in the mean", "median", "10 % to 90 %", "within 0.8 to 1.25"]
    heads.append("in the interval")
    for title, kept in (("Nothing of these was fitted", True), ("The half that was fitted", False)):
        rows = list(_rows([comparison for comparison in compared if comparison.kept is kept]))
        text += f"## {title}\n\n" + _sheet.table(heads, rows) + "\n"
    text += "## Each model\n\n"
    text += (
        "Estimated / published; where the interval does not hold what is published, in *italics*.\n"
        "Half 0 was fitted where a setting was.\n\n"
    )
    settings = list(dict.fromkeys(comparison.setting for comparison in compared))
    heads = ["model", "side", "half", *(f"{_short(setting)}, {setting.label}" for setting in settings)]
    cells: defaultdict[Key, dict[Setting, str]] = defaultdict(dict)
    for comparison in compared:
        cells[comparison.key][comparison.setting] = (
            f"{comparison.ratio:.2f}" if comparison.inside else f"*{comparison.ratio:.2f}*"
        )
    rows = [
        [*key, half(key[0]), *(cell.get(setting, "–") for setting in settings)] for key, cell in cells.items()
    ]
    return text + _sheet.table(heads, rows)


def _rows(compared: Sequence[Comparison]) -> Iterator[list[object]]:
    for setting in dict.fromkeys(comparison.setting for comparison in compared):
        yield _row(
            [_short(setting), setting.label],
            [comparison for comparison in compared if comparison.setting == setting],
        )
    yield _row(["all", ""], compared)


def _row(cells: list[object], compared: Sequence[Comparison]) -> list[object]:
    ratio = np.array([comparison.ratio for comparison in compared])
    low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
    near = ((ratio >= 0.8) & (ratio <= 1.25)).mean()
    inside = np.mean([comparison.inside for comparison in compared])
    return [
        *cells, len(compared), f"{np.abs(ratio - 1).mean():.0%}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}",
        f"{near:.0%}", f"{inside:.0%}",
    ]  # fmt: skip


def _short(setting: Setting) -> str:
    return setting.gpu.name.removeprefix("NVIDIA ").removesuffix(" Workstation Edition")


def main(options: Any) -> str:
    warnings.simplefilter("ignore")
    return sheet_of(list(compare_all(options.folder)))


if __name__ == "__main__":
    _sheet.main("timm_models", __doc__ or "", main, folder={"type": Path})
