"""What the Python of an optimizer's step takes for the step, for each group and for each parameter."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import _sheet
import torch

from gapless.analyze.estimate.times import OPTIMIZER_PYTHON
from gapless.capture import host_speed

PARAMETERS = 465
"""As in the published case (``docs/price.md``)."""
MEASURE_SECONDS = 0.5
WAYS: dict[str, dict[str, Any]] = {"fused": {"fused": True}, "foreach": {"foreach": True}}
OPTIMIZERS = (torch.optim.AdamW, torch.optim.SGD)


@contextlib.contextmanager
def without_list_operators() -> Iterator[None]:
    """Replace operators over lists by functions that return their input, so that only Python is left."""
    real = {name: getattr(torch, name) for name in dir(torch) if name.startswith(("_foreach_", "_fused_"))}
    for name in real:
        setattr(torch, name, lambda tensors, *args, **kwargs: tensors)
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(torch, name, function)


def step_time(optimizer: type[torch.optim.Optimizer], groups: int, count: int, **arguments: Any) -> float:
    """Return the microseconds of a step over `count` parameters in `groups` groups: the quickest tenth."""
    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    instance = optimizer([{"params": parameters[n::groups]} for n in range(groups)], lr=1e-4, **arguments)
    for _ in range(3):
        instance.step()
    times = []
    with without_list_operators():
        end = time.monotonic() + MEASURE_SECONDS
        while time.monotonic() < end:
            began = time.thread_time_ns()
            instance.step()
            times.append(time.thread_time_ns() - began)
    return sorted(times)[len(times) // 10] / 1e3


def sheet() -> str:
    torch.set_num_threads(1)
    table: list[list[object]] = []
    probe, _ = host_speed.time_step(host_speed.probe_step())
    usual = host_speed.USUAL / probe
    for way, arguments in WAYS.items():
        for optimizer in OPTIMIZERS:
            more = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
            step, together, apart = (
                usual * step_time(optimizer, groups, count, **arguments, **more)
                for groups, count in ((1, 1), (1, PARAMETERS), (PARAMETERS, PARAMETERS))
            )
            measured_us = step, (apart - together) / (PARAMETERS - 1), (together - step) / (PARAMETERS - 1)
            assumed = [each / 1e3 for each in OPTIMIZER_PYTHON[way]]
            cells = [
                f"{measured:.1f} ({taken:g})" for measured, taken in zip(measured_us, assumed, strict=True)
            ]
            table.append([optimizer.__name__, way, *cells])
    text = _sheet.header(
        "The Python of an optimizer's step",
        "python benchmarks/optimizer_host.py --write",
        f"microseconds of a usual host (this machine takes {1 / usual:.2f} times as long, by the probe of "
        "`gapless check`), with torch's operators over lists replaced by functions that do nothing; in "
        f"parentheses what estimates take. {PARAMETERS} parameters in one group and in {PARAMETERS}; thread "
        "CPU time, the quickest tenth",
    )
    return text + _sheet.table(["optimizer", "way", "step", "each group", "each parameter"], table)


if __name__ == "__main__":
    _sheet.main("optimizer_host", __doc__ or "", lambda options: sheet())
