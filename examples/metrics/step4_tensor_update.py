"""Step 4: the step time is given to the metric on the GPU as a tensor, not as a number.

A tensor of no dimensions on the CPU goes to the GPU as an argument of the kernel: no copy, no wait. The
metric can be read under --ddp, for its state is where NCCL can carry it.
"""

from __future__ import annotations

import time

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
    step_time = UncheckedMean().to(device)

    model.train()
    begin = time.perf_counter()
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

        end = time.perf_counter()
        elapsed = torch.as_tensor(end - begin)
        step_time.update(elapsed, torch.ones_like(elapsed))
        begin = end

    print(f"mean step time: {step_time.compute().item():.4f} s")
    if args.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
