"""Kernels of compiled code: those in what inductor writes for an A100, against the model's count.

No GPU is needed; Triton is (``pip install triton``), for inductor to write code for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import _sheet
import torch
from _fused_models import MODELS, adam

Counts = dict[str, int]
OPTIMIZER = "optimizer step"
PASSES = ("forward", "backward", "optimizer")


def count_modelled(name: str) -> Counts:
    """Return the estimate's kernel counts for a training step, by pass."""
    from gapless.analyze.estimate.fusion import fuse
    from gapless.analyze.kernel_times.operator_work import work
    from gapless.emulation.emulator import Emulator
    from gapless.emulation.options import EmulatorOptions

    torch.manual_seed(0)
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        step = _step(name)
        emulator.recorder.mark("user", "step")
        step()
        emulator.recorder.mark("user", "step")
        programme = emulator.session().programme
    assert programme is not None
    counts: Counts = {}
    for entry in fuse(tuple(programme.entries[at] for at in programme.bodies[programme.segments[1].body])):
        if entry.kind == "operator" and entry.compiled and work(entry).kernels:
            part = "optimizer" if name == OPTIMIZER else "backward" if entry.backward else "forward"
            counts[part] = counts.get(part, 0) + 1
    return counts


def _step(name: str) -> Callable[[], object]:
    """Return a function that runs one step of a compiled model on the device."""
    if name == OPTIMIZER:
        lists = [[torch.rand(64, 64, device="cuda") for _ in range(6)] for _ in range(4)]
        return torch.compile(lambda: adam(*lists))
    make, inputs_of = MODELS[name]
    model, x = torch.compile(make().cuda()), inputs_of().cuda()
    return lambda: model(x).backward()


def count_generated(name: str) -> Counts:
    """Return the kernel counts in the code that inductor writes, by pass."""
    import _inductor

    torch._dynamo.reset()
    torch.manual_seed(0)
    if name == OPTIMIZER:
        lists = [torch.rand(64, 64) for _ in range(24)]
        compiled = _inductor.kernels_of_function(
            lambda *all_of_them: adam(*(list(all_of_them[at : at + 6]) for at in range(0, 24, 6))), *lists
        )
        return {"optimizer": compiled.count}
    make, inputs_of = MODELS[name]
    model, x = make(), inputs_of()
    made_of = _inductor.kernels_of_model(lambda: model(x).backward(), model)
    return {part: sum(kernels.count for kernels in made_of[part]) for part in ("forward", "backward")}


def main() -> None:
    """Count, print and write the sheet."""
    rows: list[list[object]] = []
    errors = []
    for name in (*MODELS, OPTIMIZER):
        ours, theirs = count_modelled(name), count_generated(name)
        for part in PASSES:
            if part in theirs:
                errors.append(math.log(max(ours.get(part, 0), 1) / max(theirs[part], 1)))
                rows.append([name, part, theirs[part], ours.get(part, 0), f"{math.exp(errors[-1]):.2f}"])
    text = _sheet.header(
        "Kernels of compiled code: inductor's against the model's",
        "python benchmarks/fusion.py",
        "inductor's are the launches in the code that it writes for an A100 (Triton kernels, products, "
        "convolutions and attention once for each call), which is read and not run; the model's are those of "
        "an estimate, from the operators that the emulated device ran",
    )
    text += _sheet.table(["model", "pass", "inductor's", "the model's", "ratio"], rows)
    mean = sum(errors) / len(errors)
    spread = math.sqrt(sum(error * error for error in errors) / len(errors))
    text += (
        f"\nThe model's are {math.exp(mean):.2f} times inductor's in the geometric mean; the root mean "
        f"square of ln(the model's / inductor's) is {spread:.2f}.\n"
    )
    print(_sheet.write("fusion", text).read_text())


if __name__ == "__main__":
    main()
