"""What every stage of this example shares: data, model, arguments. The stage files hold the training loop."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Accuracy, F1Score, MeanMetric, Metric, Precision, Recall

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.resnet import resnet18


class RandomImages(Dataset):
    """Random images (3, size, size) with labels in turn; as many as are asked for."""

    def __init__(self, size: int, classes: int, length: int) -> None:
        self.size, self.classes, self.length = size, classes, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(3, self.size, self.size), index % self.classes


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of every stage. The defaults are small: they take seconds where the device is emulated."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--average", choices=("micro", "macro"), default="micro", help="of the class metrics")
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    parser.add_argument("--log-every", type=int, default=5, help="steps between two lines of results")
    parser.add_argument("--workers", type=int, default=2, help="processes that prepare batches")
    parser.add_argument("--ddp", action="store_true", help="train under DistributedDataParallel, one process")
    return parser


def make_loader(args: argparse.Namespace) -> DataLoader:
    """Batches of images (batch, 3, size, size) and labels (batch,), in pinned memory."""
    images = RandomImages(args.size, args.classes, args.batch * args.steps)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return DataLoader(images, batch_size=args.batch, pin_memory=True, **workers)


def make_model(args: argparse.Namespace, device: str) -> nn.Module:
    """ResNet-18 on `device`; with ``--ddp`` in a process group of one that knows NCCL only."""
    model = resnet18(args.classes).to(device)
    if not args.ddp:
        return model
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl", rank=0, world_size=1)
    torch.cuda.set_device(0)
    return DistributedDataParallel(model)


def make_metrics(args: argparse.Namespace, device: str, mean: type = MeanMetric) -> dict[str, Metric]:
    """The five metrics of the example, their state on `device`."""
    options = {"task": "multiclass", "num_classes": args.classes, "average": args.average}
    metrics = {
        "avg_loss": mean(),
        "accuracy": Accuracy(**options),
        "precision": Precision(**options),
        "recall": Recall(**options),
        "f1_score": F1Score(**options),
    }
    return {name: metric.to(device) for name, metric in metrics.items()}
