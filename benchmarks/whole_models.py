"""How far off the steps of whole models are that are estimated from a script, not from lists of operators.

    python benchmarks/whole_models.py FOLDER            # print the sheet
    python benchmarks/whole_models.py FOLDER --write    # … and keep it in benchmarks/sheets

FOLDER holds NeuSight's measured runs (`_kernel_models.py`). Each model is built and run on the emulated
device without values, as `gapless check --dry` runs a script, and estimated for the GPU of the run.
"""

from __future__ import annotations

from pathlib import Path

import _sheet
import msgspec
import numpy as np
import torch
from _kernel_models import ModelRun, runs
from _kernel_tables import GPUS
from _language_models import MODELS

import gapless
from gapless.analyze.reports import report
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Session
from gapless.model.estimate import Estimate

GPUS_SHOWN = ("V100-PCIE-32GB", "A100-PCIE-40GB", "A100-PCIE-80GB", "H100-SXM-80GB", "L4")
STEPS = 4


def record_steps(name: str, batch: int, length: int, trains: bool) -> Session:
    """Record a few steps: forward, or forward and backward, without an optimizer."""
    with (
        Emulator(EmulatorOptions("b200", programme=True, dry=True)) as emulator,
        torch.set_grad_enabled(trains),
    ):
        model = MODELS[name](trains).cuda().train(trains)
        ids = torch.zeros(batch, length, dtype=torch.long, device="cuda")
        for _ in range(STEPS):
            logits = model(ids)
            if trains:
                logits.backward(torch.ones_like(logits))
            gapless.step()
    return emulator.session()


def estimate_on(session: Session, run: ModelRun) -> Estimate:
    programme = session.programme
    assert programme is not None
    programme = msgspec.structs.replace(programme, gpu=GPUS[run.gpu])
    estimate = report(msgspec.structs.replace(session, programme=programme)).estimate
    assert estimate is not None
    assert not estimate.refused, estimate.refused
    return estimate


MAX_FORWARD_RATIO = 1.3
"""A forward pass that takes longer than its operators by this factor was measured differently."""


def rows(folder: Path) -> list[list[object]]:
    chosen = sorted(
        (measured_run for measured_run in runs(folder) if measured_run.gpu in GPUS_SHOWN),
        key=lambda measured_run: (measured_run.name, GPUS_SHOWN.index(measured_run.gpu)),
    )
    table: list[list[object]] = []
    sessions: dict[str, Session] = {}
    for run in chosen:
        name, mode, length, batch = run.name.split("-")
        if run.name not in sessions:
            sessions = {run.name: record_steps(name, int(batch), int(length), mode == "train")}
        estimate = estimate_on(sessions[run.name], run)
        listed = sum(operator.times * operator.forward_us for operator in run.operators if operator.forward)
        step = estimate.step
        inside = step.least <= run.us * 1e3 <= step.most
        table.append(
            [run.gpu, run.name, f"{run.us / 1e3:.1f}", f"{step.likely / 1e6:.1f}",
             f"{step.likely / run.us / 1e3:.2f}", "yes" if inside else "no", estimate.limiter,
             f"{run.forward_us / listed:.2f}"]
        )  # fmt: skip
    return table


def summary_line(table: list[list[object]], kind: str) -> str:
    off = np.array([abs(float(str(row[4])) - 1) for row in table])
    inside = sum(row[5] == "yes" for row in table)
    return f"- {kind} ({len(off)}): mean {off.mean():.1%}, worst {off.max():.0%}; {inside} in the interval\n"


def sheet(folder: Path) -> str:
    table = rows(folder)
    text = _sheet.header(
        "Whole models, from a script",
        "python benchmarks/whole_models.py FOLDER --write",
        "language models in fp32, built in torch and run on the emulated device without values; a step as "
        "`gapless check --dry` estimates it for the GPU of a measured run (NeuSight, MIT licence; none of it "
        "fitted), whose times hold no optimizer; *forward* is the run's forward pass in parts of what its "
        "operators took each for itself",
    )
    heads = ["GPU", "run", "measured, ms", "estimated, ms", "estimated / measured", "inside", "limiter"]
    text += _sheet.table([*heads, "forward"], table) + "\n"
    train = [row for row in table if "-train-" in str(row[1])]
    agreeing = [row for row in train if float(str(row[7])) < MAX_FORWARD_RATIO]
    text += summary_line(train, "training")
    text += summary_line(agreeing, f"training, where *forward* is below {MAX_FORWARD_RATIO}")
    return text + summary_line([row for row in table if row not in train], "inference")


if __name__ == "__main__":
    _sheet.main("whole_models", __doc__ or "", lambda options: sheet(options.folder), folder={"type": Path})
