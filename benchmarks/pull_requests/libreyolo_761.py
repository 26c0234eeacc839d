"""LibreYOLO's own training epoch, of RF-DETR or D-FINE, on made images with seven boxes each."""

from __future__ import annotations

import argparse
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch

STEPS, BATCH, BOXES, MOST_BOXES = 14, 8, 7, 100
FAMILIES = {
    "rfdetr": ("LibreRFDETRModel", "RFDETRTrainer", 512),
    "dfine": ("LibreDFINEModel", "DFINETrainer", 640),
}


class Batches(list):
    """Batches in place of a loader."""

    dataset = None


def batches(side: int) -> Batches:
    """Return batches as the loader gives them: pinned images, and boxes padded with zeros."""
    images = torch.rand(BATCH, 3, side, side).pin_memory()
    targets = torch.zeros(BATCH, MOST_BOXES, 5)
    targets[:, :BOXES, 0] = torch.randint(0, 80, (BATCH, BOXES))
    targets[:, :BOXES, 1:3] = side * (0.3 + 0.4 * torch.rand(BATCH, BOXES, 2))
    targets[:, :BOXES, 3:] = side * 0.2
    return Batches([(images, targets.pin_memory(), None, None)] * STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=sorted(FAMILIES))
    family = parser.parse_args().family
    model_class, trainer_class, side = FAMILIES[family]
    model = getattr(import_module(f"libreyolo.models.{family}.nn"), model_class)("s", nb_classes=80)
    trainer = getattr(import_module(f"libreyolo.models.{family}.trainer"), trainer_class)(
        model=model, wrapper_model=SimpleNamespace(device=torch.device("cuda"), task="detect", model=model),
        size="s", num_classes=80, data=None, epochs=1, batch=BATCH, imgsz=side, device="cuda", amp=True,
        ema=False, no_aug_epochs=0, warmup_epochs=0, eval_interval=-1, multi_scale=False,
        nbs=BATCH,
    )  # fmt: skip
    trainer._setup_data = lambda: setattr(trainer, "train_loader", batches(side))
    with tempfile.TemporaryDirectory() as folder:
        trainer._get_save_dir = lambda: Path(folder)
        trainer.setup()
        trainer._train_epoch(0)


if __name__ == "__main__":
    main()
