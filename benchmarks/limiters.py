"""What limits published steps whose GPU busy share is known, and what a check without a GPU says of it.

    python benchmarks/limiters.py            # print the sheet
    python benchmarks/limiters.py --write    # … and keep it in benchmarks/sheets

Nothing was fitted to the GPU times. Models are those of a package, which is installed on top of the running
environment in `build/limiters`, or written in plain torch; steps run without values on the emulated GPU, with
the CPU that such GPUs stand beside as a rule. What a check recorded is kept in `build/limiters/sessions` and
reported anew each time: remove that folder where emulation has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import _sheet

from gapless.analyze.reports import report
from gapless.model.estimate import MIN_CLEAR_SHARE, MIN_SURE_SHARE, Estimate
from gapless.model.session import load
from gapless.replay.path import MIN_BUSY_SHARE

FOLDER = _sheet.HERE.parent / "build" / "limiters"
SESSIONS = FOLDER / "sessions"
PYTHON = FOLDER / "bin" / "python"
ALONE = ("rfdetr==1.10.1", "torchvision==0.28.0", "peft", "pyDeprecate==0.9.*")
PACKAGES = (
    "accelerate", "faster-coco-eval", "opencv-python-headless", "pycocotools", "pydantic",
    "pytorch_lightning", "scipy", "supervision", "timm", "torchmetrics", "transformers",
)  # fmt: skip
"""Requirements of the models; those in `ALONE` pin other versions and are installed without dependencies."""


class Case(NamedTuple):
    """A script with its arguments on a GPU; published milliseconds of a step and of its GPU work, kernels
    (0: not published), and the source's number."""

    label: str
    gpu: str
    words: str
    step: float
    busy: float
    kernels: int
    source: int

    @property
    def session(self) -> Path:
        return SESSIONS / f"{self.gpu}-{'-'.join(self.words.replace('--', '').split()[1:])}.json"


def _rfdetr(gpu: str, words: str, step: float, busy: float, kernels: int) -> Case:
    label = f"RF-DETR {words.replace(' --', ', ')}"
    return Case(label, gpu, f"_published_rfdetr.py {words}", step, busy, kernels, 1)


def _resnet(batch: int, eager: float, captured: float) -> Case:
    """Return a case from the table of steps launched one by one and from a captured graph, three steps
    each."""
    words = f"_published_models.py resnet50 --batch {batch} --train --adam"
    plural = "image" if batch == 1 else "images"
    return Case(f"ResNet-50, {batch} {plural}", "v100", words, eager / 3, min(captured, eager) / 3, 0, 2)


CASES = (
    _rfdetr("l4", "nano --batch 1", 132.9, 25.8, 4228),
    _rfdetr("l4", "nano --batch 4", 141.0, 64.4, 4472),
    _rfdetr("l4", "small --batch 1", 151.1, 32.2, 4810),
    _rfdetr("l4", "small --batch 2", 155.5, 51.5, 4958),
    _rfdetr("rtx4060", "nano --batch 1", 41.4, 29.8, 4214),
    _rfdetr("rtx4060", "nano --batch 4", 105.9, 96.4, 4379),
    _rfdetr("rtx4060", "small --batch 1", 54.8, 40.9, 4781),
    _resnet(1, 89.033, 50.233),
    _resnet(2, 92.854, 56.13),
    _resnet(4, 93.676, 71.465),
    _resnet(8, 105.099, 105.381),
    _resnet(16, 167.292, 167.966),
    _resnet(32, 297.315, 297.989),
)
SOURCES = (
    "[roboflow/rf-detr, issue 1410](https://github.com/roboflow/rf-detr/issues/1410), August 2026: bf16, "
    "busy time from CUPTI. The RTX 4060 is a laptop's; it is emulated as the desktop's, which has as many "
    "multiprocessors.",
    "[pytorch/benchmark, pull request 706](https://github.com/pytorch/benchmark/pull/706), January 2022: "
    "fp32, three steps a measurement, launched one by one (the step) and from a CUDA graph (what the GPU "
    "takes at most); Adam as of then, parameter by parameter.",
)


def make_environment() -> None:
    """Make the environment unless it exists."""
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


def estimate_of(case: Case) -> Estimate:
    """Return the estimate of a check of the case."""
    if not case.session.exists():
        make_environment()
        SESSIONS.mkdir(exist_ok=True)
        script, *words = case.words.split()
        command = [str(PYTHON), "-m", "gapless", "check", "--dry", "--gpu", case.gpu, "--host", "usual"]
        subprocess.run(
            [*command, "-o", str(case.session), str(_sheet.HERE / script), *words],
            check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(_sheet.HERE.parent / "src")},
        )  # fmt: skip
    estimate = report(load(str(case.session))).estimate
    assert estimate is not None, case
    assert not estimate.refused, case
    return estimate


class Statement(NamedTuple):
    """Whether the likeliest limiter is right, the words users read, and its probability."""

    right: bool
    words: str
    certainty: float


def judge(estimate: Estimate, limiter: str) -> Statement:
    words = "probably" if estimate.clear else "cannot tell"
    if estimate.sure >= MIN_SURE_SHARE:
        words = "almost certainly"
    return Statement(estimate.limiter == limiter, words, estimate.sure)


def row(case: Case) -> tuple[list[object], Statement]:
    """Return a row of the sheet, and the statement in it."""
    print(f"{case.label}, {case.gpu} …", file=sys.stderr)
    estimate = estimate_of(case)
    limiter = "device" if case.busy >= MIN_BUSY_SHARE * case.step else "host"
    least, likely, most = (
        time / 1e6 for time in (estimate.step.least, estimate.step.likely, estimate.step.most)
    )
    statement = judge(estimate, limiter)
    cells: list[object] = [
        case.label, estimate.gpu.removeprefix("NVIDIA "), f"{case.step:.0f}",
        f"{likely:.0f} ({least:.0f}–{most:.0f})", f"{case.busy:.1f} ({case.busy / case.step:.0%})",
        f"{estimate.device / 1e6:.1f}", case.kernels or "–", round(estimate.launches), limiter,
        f"{statement.words} {estimate.limiter} ({statement.certainty:.0%})",
        "yes" if statement.right else "NO",
        case.source,
    ]  # fmt: skip
    return cells, statement


def calibration(answers: list[Statement]) -> str:
    """Return a table of right statements by the words in which users read them."""
    rows = []
    for words in ("almost certainly", "probably", "cannot tell"):
        mine = [answer for answer in answers if answer.words == words]
        mean = sum(answer.certainty for answer in mine) / len(mine) if mine else 0.0
        rows.append([words, len(mine), sum(answer.right for answer in mine), f"{mean:.0%}" if mine else "–"])
    return _sheet.table(["said", "steps", "right", "how sure, mean"], rows)


def sheet() -> str:
    table, answers = zip(*map(row, CASES), strict=True)
    text = _sheet.header(
        "What limits published steps",
        "python benchmarks/limiters.py --write",
        "milliseconds of a step and of the GPU's work in it, kernels, and what limits the step: as "
        "published, and by `gapless check --dry --host usual` of the same package or model on made "
        f"inputs. The GPU limits a step in which it is busy for {MIN_BUSY_SHARE:.0%} or more, else the CPU. "
        "The speed of the CPUs beside L4s was chosen by these steps, and what is called probable (from "
        f"{MIN_CLEAR_SHARE:.0%} on) with them in view; nothing else was fitted to any",
    )
    text += _sheet.table(
        ["step", "GPU", "published, ms", "estimated, ms", "GPU busy", "estimated", "kernels", "estimated",
         "limited by", "said", "right", "source"],
        list(table),
    )  # fmt: skip
    right = sum(answer.right for answer in answers)
    text += (
        f"\nThe likeliest limiter is right in {right} of {len(answers)}.\n\n{calibration(list(answers))}\n"
    )
    return text + "".join(f"{at}. {source}\n" for at, source in enumerate(SOURCES, 1))


if __name__ == "__main__":
    _sheet.main("limiters", __doc__ or "", lambda options: sheet())
