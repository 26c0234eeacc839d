"""Step 2: the mean of the loss no longer checks for NaN; no training step waits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import arguments, make_loader, make_metrics, make_model
from unchecked import UncheckedMean


def main() -> None:
    args = arguments(__doc__).parse_args()
    device = "cuda"
    model = make_model(args, device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = make_metrics(args, device, mean=UncheckedMean)

    model.train()
    for step, (images, labels) in enumerate(make_loader(args), start=1):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, labels)
        loss.backward()
        optimizer.step()

        metrics["avg_loss"].update(loss, torch.ones_like(loss))
        for name in ("accuracy", "precision", "recall", "f1_score"):
            metrics[name].update(output, labels)

        if step % args.log_every == 0:
            results = {name: metric.compute().item() for name, metric in metrics.items()}
            print(f"step {step}:", ", ".join(f"{name} {value:.4f}" for name, value in results.items()))
            for metric in metrics.values():
                metric.reset()

    if args.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
