"""Step 3: the mean step time is collected too, where its values are: on the host.

Held by the CPU (the default) it costs nothing, but with --ddp its last reading fails: the process group knows
only NCCL, and NCCL carries nothing that lies on the CPU. --time-metric says what to do about it: "local" does
not ask the other ranks; "device" moves the metric to the GPU, and every update then waits for a copy.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import arguments, make_loader, make_metrics, make_model
from unchecked import UncheckedMean


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--time-metric", choices=("cpu", "local", "device"), default="cpu", help="see above")
    args = parser.parse_args()
    device = "cuda"
    model = make_model(args, device)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = make_metrics(args, device, mean=UncheckedMean)
    step_time = UncheckedMean(sync_on_compute=args.time_metric != "local")
    if args.time_metric == "device":
        step_time = step_time.to(device)

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
        step_time.update(end - begin)
        begin = end

    print(f"mean step time: {step_time.compute().item():.4f} s")
    if args.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
