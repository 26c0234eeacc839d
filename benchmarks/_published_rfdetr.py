"""RF-DETR on made images, as its trainer steps: of the package that is installed.

gapless check --gpu l4 _published_rfdetr.py nano --batch 4
gapless check --gpu l4 _published_rfdetr.py medium --batch 8 --solve-on-gpu
"""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

import torch
from rfdetr._namespace import _namespace_from_configs
from rfdetr.config import RFDETRMediumConfig, RFDETRNanoConfig, RFDETRSmallConfig, TrainConfig
from rfdetr.models.lwdetr import build_criterion_from_config, build_model_from_config
from rfdetr.models.matcher import HungarianMatcher
from rfdetr.training.param_groups import get_param_dict
from rfdetr.utilities.tensors import NestedTensor

CONFIGS = {"nano": RFDETRNanoConfig, "small": RFDETRSmallConfig, "medium": RFDETRMediumConfig}
BOXES = 7
"""Boxes per image, about as many as in COCO."""


def targets(batch: int) -> list[dict[str, torch.Tensor]]:
    """Return boxes and labels for a batch."""
    sizes = torch.full((BOXES, 2), 0.2, device="cuda")
    return [
        {
            "labels": torch.randint(0, 80, (BOXES,), device="cuda"),
            "boxes": torch.cat([torch.rand(BOXES, 2, device="cuda"), sizes], 1),
            "image_id": torch.zeros(1, dtype=torch.int64, device="cuda"),
            "area": torch.full((BOXES,), 100.0, device="cuda"),
            "iscrowd": torch.zeros(BOXES, dtype=torch.int64, device="cuda"),
        }
        for _ in range(batch)
    ]


def batch_linear_assignment(costs: torch.Tensor) -> torch.Tensor:
    """Return for each row of each problem its column, or -1: any assignment, of the GPU's own."""
    rows = torch.arange(costs.shape[1], device=costs.device)
    return torch.where(rows < costs.shape[2], rows, -1).expand(costs.shape[0], -1)


def choose_matcher(on_gpu: bool) -> None:
    """Let targets be matched on the CPU, as the measured releases do, or by a solver on the GPU."""
    if on_gpu:
        solver = ModuleType("torch_linear_assignment")
        solver.batch_linear_assignment = batch_linear_assignment
        sys.modules[solver.__name__] = solver
    else:
        HungarianMatcher._compact_path_applicable = lambda *args, **kwargs: False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(CONFIGS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--solve-on-gpu", action="store_true")
    options = parser.parse_args()
    choose_matcher(options.solve_on_gpu)
    config = CONFIGS[options.model](pretrain_weights=None, device="cuda")
    training = TrainConfig(dataset_dir=".", output_dir=".", batch_size=options.batch)
    model = build_model_from_config(config, training).cuda().train()
    criterion, _ = build_criterion_from_config(config, training)
    criterion = criterion.cuda().train()
    groups = get_param_dict(_namespace_from_configs(config, training), model)
    optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=1e-4, fused=True)
    side = config.resolution
    images = torch.rand(options.batch, 3, side, side, device="cuda")
    mask = torch.zeros(options.batch, side, side, dtype=torch.bool, device="cuda")
    for _ in range(12):
        boxes = targets(options.batch)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(NestedTensor(images, mask), boxes)
            losses = criterion(outputs, boxes)
            loss = sum(
                losses[name] * criterion.weight_dict[name] for name in losses if name in criterion.weight_dict
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
