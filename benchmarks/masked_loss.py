"""What masks cost a loss over part of the pixels, and what each step of writing it without them gives back.

    python benchmarks/masked_loss.py            # small on a CPU, at full size on a GPU; prints the sheet
    python benchmarks/masked_loss.py --write    # … and keeps it in benchmarks/sheets

The stages are those of examples/segmentation, imported from there. All but the one the article ends with
compute the same loss; that one leaves out the treatment of the background and the check for two labels.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples" / "segmentation"
sys.path.insert(0, str(HERE))
import _sheet
import _stages
import torch
from torch import nn

FILES = ("original", "step1_where", "step2_sort", "step3_ignore_index", "step4_ops")
NAMES = {
    "original": "original: indices, distinct values, masks",
    "step1_where": "step 1: `torch.where` for the background",
    "step2_sort": "step 2: labels counted by sorting",
    "step3_ignore_index": "step 3: `ignore_index` for the masks",
    "step4_ops": "step 4: `gapless.ops`",
}
PUBLISHED = "the article's last step: a shorter loss"


@dataclass(frozen=True)
class Size:
    """Images (batch, 3, pixels, pixels) with a class per pixel."""

    pixels: int
    batch: int
    classes: int = 10

    def __str__(self) -> str:
        return (
            f"10 convolutions of 10 channels, {self.batch} images of {self.pixels}×{self.pixels}, "
            f"{self.classes} classes"
        )


SMALL, FULL, TINY = Size(32, 4), Size(256, 256), Size(8, 2)


def example(name: str) -> ModuleType:
    """Import a file of the example with its neighbours, keeping other examples' `common` out."""
    previous = sys.modules.pop("common", None)
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop("common", None)
        if previous is not None:
            sys.modules["common"] = previous


def losses(classes: int) -> dict[str, nn.Module]:
    """Return the losses, in the order of the article's steps."""
    by_name: dict[str, nn.Module] = {NAMES[name]: example(name).ForegroundLoss(classes) for name in FILES}
    return {**by_name, PUBLISHED: nn.CrossEntropyLoss(ignore_index=-1)}


def steps(size: Size) -> _stages.Steps:
    """Return for a device a training step per loss; they share a network."""
    network = example("original").train.__globals__["Network"]

    def on(device: str) -> dict[str, _stages.Step]:
        torch.manual_seed(0)
        model = network(size.classes).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        images = torch.randn(size.batch, 3, size.pixels, size.pixels, device=device)
        label_source = torch.randint(-1, size.classes, (size.batch, size.pixels, size.pixels), device=device)

        def step_with(criterion: nn.Module) -> _stages.Step:
            def step() -> None:
                labels = label_source.clone()  # the original writes into them
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

            return step

        return {name: step_with(loss) for name, loss in losses(size.classes).items()}

    return on


def sheet(rows: list[_stages.Measured], size: Size, rounds: int, block: int, command: str) -> str:
    """Return the sheet."""
    text = _sheet.header("A masked loss", command, _stages.method(rounds, block, str(size)))
    return text + _stages.table(rows)


if __name__ == "__main__":
    sys.exit(_stages.main(__doc__, sys.modules[__name__], "masked_loss", block=20))
