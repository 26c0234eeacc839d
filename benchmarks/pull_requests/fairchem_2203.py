"""The loss of UMA-S, conserving, on one of 8 ranks: 15 tasks of fairchem, predicted by one small layer.

Ray and Weights & Biases are only imported there, so that anything does for them.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from unittest.mock import MagicMock

import torch

STEPS, STRUCTURES, ATOMS = 14, 15, 45
DATASETS = ("oc20", "omol", "omat", "odac", "omc")
UNUSED = (
    "ray", "ray.serve", "ray.serve.schema", "ray.util", "ray.util.scheduling_strategies",
    "ray.remote_function", "wandb",
)  # fmt: skip


def replace_unused() -> None:
    for name in UNUSED:
        module = MagicMock(__path__=[], __spec__=importlib.machinery.ModuleSpec(name, None))
        sys.modules[name] = module


class Batch(dict):
    """A batch whose entries are attributes, too."""

    __getattr__ = dict.__getitem__


def make_batch() -> Batch:
    """Return structures of each dataset in turn; the labels of the others are missing."""
    names = [DATASETS[number % len(DATASETS)] for number in range(STRUCTURES)]
    atoms = STRUCTURES * ATOMS
    batch = Batch(
        natoms=torch.full((STRUCTURES,), ATOMS).cuda(), dataset_name=names, pos=torch.randn(atoms, 3).cuda(),
        fixed=torch.zeros(atoms).cuda(),
    )  # fmt: skip
    for dataset in DATASETS:
        labelled = torch.tensor([name == dataset for name in names])
        energy, stress = torch.randn(STRUCTURES, 1), torch.randn(STRUCTURES, 9)
        energy[~labelled], stress[~labelled] = torch.inf, torch.inf
        forces = torch.randn(STRUCTURES, ATOMS, 3)
        forces[~labelled] = torch.inf
        labels = {"energy": energy, "forces": forces.flatten(0, 1), "stress": stress}
        batch |= {f"{dataset}_{label}": values.cuda() for label, values in labels.items()}
    return batch


def make_tasks() -> list:
    """Return three tasks of each dataset, with the losses of the repository's configuration."""
    from fairchem.core.modules import loss
    from fairchem.core.modules.normalization.normalizer import Normalizer
    from fairchem.core.units.mlip_unit.mlip_unit import OutputSpec, Task

    kinds = (
        ("energy", "system", loss.DDPMTLoss(loss.PerAtomMAELoss(), "mean", 10.0)),
        ("forces", "atom", loss.DDPMTLoss(loss.L2NormLoss(), "per_structure", 30.0)),
        ("stress", "system", loss.DDPMTLoss(loss.MAELoss(), "mean", 5.0)),
    )
    return [
        Task(
            f"{dataset}_{name}", level, name, OutputSpec([1], "float32"), Normalizer().cuda(), [dataset],
            measure,
        )
        for dataset in DATASETS
        for name, level, measure in kinds
    ]  # fmt: skip


def main() -> None:
    replace_unused()
    from fairchem.core.units.mlip_unit.mlip_unit import compute_loss

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    layer = torch.nn.Linear(3, 3).cuda()
    tasks, optimizer = make_tasks(), torch.optim.AdamW(layer.parameters(), lr=1e-3, fused=True)
    for batch in [make_batch() for _ in range(STEPS)]:
        forces = layer(batch.pos)
        summed = forces.view(STRUCTURES, ATOMS, 3).sum(1)
        predicted = {"energy": summed.sum(1), "forces": forces, "stress": summed.repeat(1, 3)}
        losses = compute_loss(tasks, {task.name: predicted for task in tasks}, batch)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
