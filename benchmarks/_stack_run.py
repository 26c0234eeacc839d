"""Runs a script of `stacks/`, under Gapless or plainly on the CPU, and writes when its optimizers stepped.

`python _stack_run.py TIMES check OPTIONS… SCRIPT` or `python _stack_run.py TIMES plain SCRIPT`.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 12
"""Steps `gapless check` analyses, including two of warm-up."""


class ImportHook:
    """Calls functions before and after a module is first imported."""

    def __init__(self, name: str, after: Callable[[Any], None], before: Callable[[], None]) -> None:
        self.name, self.after, self.before = name, after, before

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            sys.meta_path.remove(self)
            self.before()
            run(module)
            self.after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def record_step_times(path: Path) -> None:
    """Write the times of the optimizers' steps to `path`, in seconds of a clock."""
    stepped: list[float] = []

    def registered(module: Any) -> None:
        module.register_optimizer_step_post_hook(lambda *_: stepped.append(time.perf_counter()))

    sys.meta_path.insert(0, ImportHook("torch.optim.optimizer", registered, lambda: None))
    atexit.register(lambda: path.write_text(json.dumps(stepped[:STEPS])))


def provide_nms() -> None:
    """Let a torchvision built for CUDA be imported with a CPU torch, by defining `nms` in plain torch.

    Not needed under Gapless, which defines its own.
    """
    libraries: list[Any] = []

    def define() -> None:
        import torch

        libraries.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            libraries[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def implement(module: Any) -> None:
        if not module.extension._has_ops():
            module.extension._has_ops = lambda: True
            libraries[0].impl("nms", _nms, "CPU")

    sys.meta_path.insert(0, ImportHook("torchvision", implement, define))


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:
    import torch

    order, kept = scores.argsort(descending=True), []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while order.numel():
        best, rest = order[0], order[1:]
        kept.append(best)
        top = torch.maximum(boxes[rest, :2], boxes[best, :2])
        common = (torch.minimum(boxes[rest, 2:], boxes[best, 2:]) - top).clamp(min=0).prod(1)
        order = rest[common / (areas[rest] + areas[best] - common) <= threshold]
    return torch.stack(kept) if kept else order


def main() -> None:
    """Run the script as the command line says."""
    times, how, *rest = sys.argv[1:]
    record_step_times(Path(times))
    if how == "check":
        from gapless.commands import main as gapless

        sys.argv = ["gapless", "check", *rest]
        raise SystemExit(gapless())
    provide_nms()
    sys.argv = [rest[0], "cpu"]
    sys.path[0] = str(Path(rest[0]).resolve().parent)
    runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()
