"""What limits published steps whose GPU busy share is known, and what a check without a GPU says of it.

    python benchmarks/limiters.py            # print the sheet
    python benchmarks/limiters.py --write    # … and keep it in benchmarks/sheets

Nothing was fitted to the GPU times. The models are those of a package, which is installed on top of the
running environment in `build/limiters`; steps run without values on the emulated GPU, with the CPU that such
GPUs stand beside as a rule.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

import _sheet

from gapless.analyze.report import report
from gapless.model.estimate import Estimate
from gapless.model.session import load

FOLDER = _sheet.HERE.parent / "build" / "limiters"
PYTHON = FOLDER / "bin" / "python"
ALONE = ("rfdetr==1.10.1", "torchvision==0.28.0", "peft", "pyDeprecate==0.9.*")
PACKAGES = (
    "accelerate", "faster-coco-eval", "opencv-python-headless", "pycocotools", "pydantic",
    "pytorch_lightning", "scipy", "supervision", "timm", "torchmetrics", "transformers",
)  # fmt: skip
"""What the model needs; those of `ALONE` ask for another torch, or another version of what is there."""
LIMITS = 0.8
"""The busy share of a step from which on the GPU limits it; below, with few syncs, the CPU does."""
SURE = 0.95


class Case(NamedTuple):
    """A script and its arguments on a GPU; published milliseconds of a step and of its GPU work, kernels."""

    what: str
    gpu: str
    words: str
    step: float
    busy: float
    kernels: int


_SCRIPT = "_published_rfdetr.py"
CASES = (
    Case("RF-DETR nano, batch 1", "l4", f"{_SCRIPT} nano --batch 1", 132.9, 25.8, 4228),
    Case("RF-DETR nano, batch 4", "l4", f"{_SCRIPT} nano --batch 4", 141.0, 64.4, 4472),
    Case("RF-DETR small, batch 1", "l4", f"{_SCRIPT} small --batch 1", 151.1, 32.2, 4810),
    Case("RF-DETR small, batch 2", "l4", f"{_SCRIPT} small --batch 2", 155.5, 51.5, 4958),
)
SOURCE = "https://github.com/roboflow/rf-detr/issues/1410"


def make() -> None:
    """Make the environment where there is none."""
    done = FOLDER / "made"
    if done.exists():
        return
    import torch

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(FOLDER)], check=True)
    beside = next((FOLDER / "lib").glob("python*/site-packages"))
    below = sysconfig.get_path("purelib")
    (beside / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    limits = FOLDER / "limits.txt"
    limits.write_text(f"torch=={torch.__version__.split('+')[0]}\n")
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(limits)]
    subprocess.run([*pip, *PACKAGES], check=True)
    subprocess.run([*pip, "--no-deps", *ALONE], check=True)
    done.touch()


def checked(case: Case) -> Estimate:
    """What a check says of it."""
    script, *words = case.words.split()
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "session.json")
        command = [str(PYTHON), "-m", "gapless", "check", "--dry", "--gpu", case.gpu, "--host", "usual"]
        subprocess.run(
            [*command, "-o", saved, str(_sheet.HERE / script), *words],
            check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(_sheet.HERE.parent / "src")},
        )  # fmt: skip
        found = report(load(saved)).estimate
    assert found is not None, case
    assert not found.refused, case
    return found


def said(found: Estimate, limiter: str) -> str:
    """Whether the limiter is right, and as how sure it is given."""
    if not found.clear:
        return f"cannot tell ({found.limiter} {found.sure:.0%})"
    right = "right" if found.limiter == limiter else "WRONG"
    return f"{right} ({found.limiter} {found.sure:.0%}{', sure' if found.sure >= SURE else ''})"


def sheet() -> str:
    make()
    table, verdicts = [], []
    for case in CASES:
        print(f"{case.what}, {case.gpu} …", file=sys.stderr)
        found = checked(case)
        limiter = "device" if case.busy >= LIMITS * case.step else "host"
        verdicts.append(said(found, limiter))
        least, likely, most = (time / 1e6 for time in (found.step.least, found.step.likely, found.step.most))
        table.append([
            case.what, found.gpu.removeprefix("NVIDIA "), f"{case.step:.0f}",
            f"{likely:.0f} ({least:.0f}–{most:.0f})", f"{case.busy:.1f} ({case.busy / case.step:.0%})",
            f"{found.device / 1e6:.1f}", case.kernels, round(found.launches), limiter, verdicts[-1],
        ])  # fmt: skip
    text = _sheet.header(
        "What limits published steps",
        "python benchmarks/limiters.py --write",
        "milliseconds of a step and of the GPU's work in it, kernels, and what limits the step: as "
        "published, from CUPTI, and by `gapless check --dry --host usual` of the same package on made "
        f"images. The GPU limits a step in which it is busy for {LIMITS:.0%} or more, else the CPU. "
        "The speed of the CPUs beside L4s was chosen by these and a T4's steps; no time of the GPU was",
    )
    text += _sheet.table(
        ["step", "GPU", "published, ms", "estimated, ms", "GPU busy", "estimated", "kernels", "estimated",
         "limited by", "said"],
        table,
    )  # fmt: skip
    right = sum(one.startswith("right") for one in verdicts)
    sure = sum(one.startswith("WRONG") and "sure" in one for one in verdicts)
    return text + (
        f"\n{right} of {len(verdicts)} limiters are right, {sum('WRONG' in one for one in verdicts)} wrong, "
        f"{sure} of them as a sure statement. Source: [roboflow/rf-detr, issue 1410]({SOURCE}), "
        "August 2026.\n"
    )


if __name__ == "__main__":
    _sheet.main("limiters", __doc__ or "", lambda asked: sheet())
