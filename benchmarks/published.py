"""Steps that others have timed, beside what a check without a GPU says of the same models.

    python benchmarks/published.py            # print the sheet
    python benchmarks/published.py --write    # … and keep it in benchmarks/sheets

Nothing was fitted to these figures. Each script (`_published_models.py`, `_bert.py`) runs as a user would run
it, by ``gapless check --dry --gpu …``, with a CPU of usual speed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import _sheet
import numpy as np

from gapless.analyze.reports import report
from gapless.model.estimate import Estimate
from gapless.model.session import load


class Source(NamedTuple):
    """Who published a figure, and how it was measured."""

    name: str
    how: str


TRANSFORMERS = Source(
    "[Hugging Face, efficient training on a single GPU]"
    "(https://huggingface.co/docs/transformers/v4.21.0/perf_train_gpu_one)",
    "BERT-large, 512 tokens; seconds for 512 samples with the `Trainer`, January 2022",
)
NVIDIA = Source(
    "[NVIDIA, DeepLearningExamples](https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/"
    "Classification/ConvNets/resnet50v1.5)",
    "ResNet-50 v1.5; images a second on one GPU, container 21.03, batches by `configs.yml`",
)
TIMM = Source(
    "[pytorch-image-models, results](https://github.com/huggingface/pytorch-image-models/tree/main/results)",
    "milliseconds of a step under autocast, NCHW; training torch 1.12, inference torch 2.4",
)
NANOGPT = Source(
    "[nanoGPT, README](https://github.com/karpathy/nanoGPT)",
    "about 250 ms an iteration before `torch.compile`, December 2022; GPT-2 (124M) with attention in its "
    "parts on an A100 40GB, with batches of 8 as `bench.py` of then, which the README does not say",
)

BERT, MODELS = "_bert.py", "_published_models.py"


class Case(NamedTuple):
    """A script with its arguments on a GPU, and the published milliseconds of a step."""

    label: str
    gpu: str
    words: str
    published: float
    source: Source


def _bert(label: str, words: str, seconds: float) -> Case:
    return Case(
        f"BERT-large, training, {label}", "v100-16gb", f"{BERT} {words}", seconds / 128 * 1e3, TRANSFORMERS
    )


def _resnet(label: str, gpu: str, batch: int, words: str, images: float) -> Case:
    return Case(
        f"ResNet-50, {label}, {batch} images", gpu, f"{MODELS} resnet50 --batch {batch} {words}",
        batch / images * 1e3, NVIDIA,
    )  # fmt: skip


CASES = (
    _bert("fp32, batch 4", "--batch 4", 57.82),
    _bert("fp32, 4 × 1", "--batch 1 --accumulate 4", 66.03),
    _bert("fp32, 4 × 1, checkpointed", "--batch 1 --accumulate 4 --checkpoint", 85.47),
    _bert("fp16, batch 4", "--batch 4 --half", 27.46),
    _bert("fp16, 4 × 1, checkpointed", "--batch 1 --accumulate 4 --checkpoint --half", 50.76),
    _resnet("training, fp32", "v100-16gb", 112, "--train", 367),
    _resnet("training, fp16, NHWC", "v100-16gb", 256, "--train --half --channels-last", 1200),
    _resnet("training, TF32", "a100-80gb", 256, "--train", 938),
    _resnet("training, fp16, NHWC", "a100-80gb", 256, "--train --half --channels-last", 2470),
    _resnet("inference, fp32", "v100-16gb", 128, "", 1229),
    _resnet("inference, fp32", "t4", 128, "", 426),
    _resnet("inference, fp16, NHWC", "t4", 128, "--half --channels-last", 1190),
    Case(
        "ResNet-50, training, fp16, 512 images", "rtx3090", f"{MODELS} resnet50 --batch 512 --train --half",
        618.983, TIMM,
    ),
    Case(
        "ViT-S/16, training, fp16, 384 images", "rtx3090", f"{MODELS} vit_small --batch 384 --train --half",
        363.872, TIMM,
    ),
    Case(
        "ResNet-50, inference, fp16, 1024 images", "rtx4090", f"{MODELS} resnet50 --batch 1024 --half",
        242.763, TIMM,
    ),
    Case(
        "GPT-2, training, fp16, 8 × 1024 tokens", "a100-40gb", f"{MODELS} gpt2 --batch 8 --train --half",
        250, NANOGPT,
    ),
)  # fmt: skip


def estimate_of(case: Case) -> Estimate:
    """Return the estimate of a dry check of the case."""
    script, *words = case.words.split()
    with tempfile.TemporaryDirectory() as folder:
        saved = str(Path(folder) / "session.json")
        command = [sys.executable, "-m", "gapless", "check", "--dry", "--gpu", case.gpu, "--host", "usual"]
        subprocess.run(
            [*command, "-o", saved, str(_sheet.HERE / script), *words], check=True, capture_output=True
        )
        estimate = report(load(saved)).estimate
    assert estimate is not None, case
    assert not estimate.refused, case
    return estimate


def rows() -> list[list[object]]:
    table: list[list[object]] = []
    for case in CASES:
        print(f"{case.label}, {case.gpu} …", file=sys.stderr)
        estimate = estimate_of(case)
        least, likely, most = (
            time / 1e6 for time in (estimate.step.least, estimate.step.likely, estimate.step.most)
        )
        inside = "yes" if least <= case.published <= most else "no"
        table.append(
            [case.label, estimate.gpu.removeprefix("NVIDIA "), f"{case.published:.0f}", f"{likely:.0f}",
             f"{least:.0f}–{most:.0f}", f"{likely / case.published:.2f}", inside,
             1 + list(dict.fromkeys(each_case.source for each_case in CASES)).index(case.source)]
        )  # fmt: skip
    return table


def sheet() -> str:
    table = rows()
    text = _sheet.header(
        "Published steps, and what a check without a GPU says of them",
        "python benchmarks/published.py --write",
        "milliseconds of a step that others have published, nothing of which was fitted, beside the estimate "
        "and its interval, in which four in five should be, by `gapless check --dry --gpu … --host usual` of "
        "a script that builds the model; of torch of today, where they had that of then",
    )
    heads = ["step", "GPU", "published", "estimated", "interval", "estimated / published", "inside", "source"]
    text += _sheet.table(heads, table)
    off = np.array([float(str(row[5])) for row in table])
    inside = sum(row[6] == "yes" for row in table)
    text += (
        f"\n{inside} of {len(table)} are in the interval. Off by {np.abs(off - 1).mean():.0%} in the mean, "
        f"from {off.min():.2f} to {off.max():.2f}.\n\n"
    )
    for number, source in enumerate(dict.fromkeys(case.source for case in CASES), 1):
        text += f"{number}. {source.name}: {source.how}.\n"
    return text


if __name__ == "__main__":
    _sheet.main("published", __doc__ or "", lambda options: sheet())
