"""Scripts as people write them, checked unmodified: they run to their end and their waits are found.

The scripts in ``scripts/`` know nothing of Gapless. What they wait for on a CUDA device stands in their
comments (see `expectations`), worked out from PyTorch's and the libraries' sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from field.expectations import differences, races
from field.running import check

from gapless.torch_internals import VERSION

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Run:
    """One way of running a script: what it must print, and how it is started."""

    says: str
    variant: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    ranks: int = 0
    needs: str = ""
    torch: int = 4
    """The first torch 2.x that has what the script uses."""


RUNS = {
    "accelerate_loop": [Run("epoch 1: accuracy", needs="accelerate")],
    "checkpointing": [Run("resumed at 40 on cuda:0")],
    "contrastive": [Run("acc/top5")],
    "dataloader_workers": [Run("epoch 1:")],
    "ddp": [
        Run("[GPU1] Epoch 1 | Steps 20", ranks=2, options=("--devices", "2")),
        Run("[GPU0] Epoch 1 | Steps 20", "alone", options=("--world-size", "2")),
    ],
    "detection_like": [Run("found ")],
    "diffusion": [Run("samples tensor(")],
    "distillation": [Run("epoch 1 loss")],
    "fsdp2": [
        Run("step 15 loss", ranks=1, torch=6),
        Run("step 15 loss", "two", options=("--devices", "2"), ranks=2, torch=6),
    ],
    "gan": [Run("[1/2][15/20] Loss_D")],
    "gnn": [Run("Epoch: 030, Loss:")],
    "hf_trainer_bert": [Run("steps 34", needs="transformers")],
    "hf_trainer_causal": [Run("next token", needs="transformers")],
    "lightning_metrics": [Run("finished at step 40", needs="lightning")],
    "long_period": [Run("step 100 loss")],
    "manual_update": [Run("weights")],
    "mnist_like": [Run("Using cuda device, 1 of them", torch=6)],
    "multi_gpu_model_parallel": [Run("on GPU 1", options=("--devices", "2"))],
    "ppo": [Run("iteration 3 loss")],
    "profiler_loop": [Run("profiled until step 4")],
    "reinforce": [Run("Episode 20")],
    "rnn_lm": [Run("| end of epoch 2 |")],
    "siamese": [Run("Test set: Average loss")],
    "transformer_gpt": [
        Run("iter 30: loss"),
        Run("using fused AdamW: False", "fp16", ("--dtype", "float16", "--no-fused")),
        Run("using fused AdamW: True", "fused16", ("--dtype", "float16")),
        Run("compiling the model...", "compiled", ("--compile",)),
    ],
    "vae": [Run("samples (16, 1, 12, 12)")],
    "wgan_gp": [Run("[Batch 45]")],
}


def cases() -> list[Any]:
    """A test case for each run; those of the large frameworks can be left out with ``-m 'not framework'``."""
    scripts = []
    for name, runs in RUNS.items():
        for run in runs:
            marks = [pytest.mark.framework] if run.needs else []
            label = f"{name}-{run.variant}" if run.variant else name
            scripts.append(pytest.param(name, run, id=label, marks=marks))
    return scripts


@pytest.mark.parametrize(("name", "run"), cases())
def test_script_runs_to_its_end_and_its_waits_are_found(name: str, run: Run, tmp_path: Path) -> None:
    if run.needs:
        pytest.importorskip(run.needs)
    if (2, run.torch) > VERSION:
        pytest.skip(f"torch 2.{VERSION[1]} lacks what the script uses, which is there since 2.{run.torch}")
    script = SCRIPTS / f"{name}.py"
    outcome = check(
        script,
        *run.arguments,
        options=("--steps", "all", *run.options),
        ranks=run.ranks,
        folder=tmp_path,
    )
    assert outcome.status == 0, outcome.errors[-4000:]
    assert outcome.report["ending"]["how"] == "finished"
    assert run.says in outcome.printed
    assert not races(outcome.report)
    wrong = differences(outcome.report, str(script), script.read_text(), run.variant)
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_script_is_run() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(RUNS)
