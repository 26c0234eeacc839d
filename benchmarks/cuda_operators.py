"""Operators that CUDA runs otherwise than the CPU, found by asking torch, and how they run without a GPU.

    python benchmarks/cuda_operators.py            # counts, and what has no reason
    python benchmarks/cuda_operators.py --write    # writes benchmarks/sheets/cuda_operators.md
    python benchmarks/cuda_operators.py --beside   # with another torch: its row in the sheet's last table

Two enumerations and a table. Every overload that torch's own list of operators gives a CUDA kernel and no
kernel for the CPU, with what stands for it. Every entry of ``op_db`` and ``module_db``, in three types, with
and without gradients, images with channels last, too: the operators that run forward and backward and the
tensors that are kept in between, beside what torch's own code chooses for CUDA. Then what single operators
keep, launch and take.
Exits with 1 when something differs and has no reason below.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import _cuda_choices as choices
import _cuda_costs as costs
import _sheet
import torch

from gapless.emulation import kernels
from gapless.emulation.dispatch import composites

BESIDE = "## Other versions of torch"
METHOD = (
    "the emulated device is an NVIDIA H100; the reference is `FakeTensorMode` with CUDA's name, in the torch "
    "named above: its C++ chooses by that name as in a build with CUDA, but for what lies in cuDNN"
)


@dataclass
class Listed:
    """An enumeration's counts, and what differs: ``case → (description, reason or "")``."""

    counts: Counter[str] = field(default_factory=Counter)
    odd: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def unexplained(self) -> dict[str, str]:
        return {case: text for case, (text, why) in self.odd.items() if not why}


# -- what has a kernel for CUDA and none for the CPU -------------------------------------------------------

_HANDLED = {"record_stream": "a note to the allocator"}
_REFUSED = "refused by name where a script calls it"
_AMD = "AMD's library: the emulated device is NVIDIA's"


@cache
def cuda_overloads() -> tuple[tuple[Any, str, bool], ...]:
    """Return ATen's overloads with a CUDA kernel, their kind of composite kernel, and whether the CPU has a
    kernel."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    cuda, cpu = (parsed.backend_indices[key] for key in (DispatchKey.CUDA, DispatchKey.CPU))
    overloads_on_cuda = []
    for function in parsed.native_functions:
        name, _, overload = str(function.func.name).partition(".")
        packet = getattr(torch.ops.aten, name, None)
        func = getattr(packet, overload or "default", None)
        if func is None or not _has_kernel(cuda, function):
            continue
        implicit = function.has_composite_implicit_autograd_kernel
        explicit = function.has_composite_explicit_autograd_kernel
        kind = "implicit" if implicit else "explicit" if explicit else ""
        overloads_on_cuda.append((func, kind, _has_kernel(cpu, function)))
    return tuple(overloads_on_cuda)


def _has_kernel(backend: Any, function: Any) -> bool:
    return backend.has_kernel(function) or function.structured_delegate in backend.index


def composites_with_kernel(cpu: bool | None = None) -> list[str]:
    """Return the overloads decomposed above autograd where they have no kernel; samples need one under
    CUDA's name. `cpu` selects those with or without a CPU kernel."""
    return [
        func.name().removeprefix("aten::")
        for func, kind, on_cpu in cuda_overloads()
        if kind == "implicit" and cpu in (on_cpu, None)
    ]


def overloads() -> Listed:
    """List what stands in for each overload that has a CUDA kernel only."""
    listed = Listed()
    for func, kind, on_cpu in cuda_overloads():
        if on_cpu:
            continue
        name = func.name().removeprefix("aten::")
        outcome, why = _substitute_of(func, name, kind)
        listed.counts[outcome] += 1
        listed.odd[name] = (outcome, why)
    return listed


def _substitute_of(func: Any, name: str, kind: str) -> tuple[str, str]:
    if "miopen" in name:
        return "left out", _AMD
    if name in _HANDLED:
        return "handled", _HANDLED[name]
    if kind == "implicit":
        is_own = name in composites.PARTS and name in kernels.REPLACED
        return "the CPU composes it of others", "CUDA's way, with a kernel here" if is_own else ""
    if kind == "explicit":
        return "one operator on both", "the CPU's kernel calls others below autograd, with the same formula"
    how = kernels.find_kernel(func)[0]
    reason = {"kernel": "a kernel here", "decomposition": "ATen's decomposition", "refused": _REFUSED}
    return how, reason.get(how, "zeros of the right shape, which a note says")


# -- what runs, and what is kept ----------------------------------------------------------------------------

_CUDNN = {
    "native_batch_norm": "cudnn_batch_norm",
    "grid_sampler_2d": "cudnn_grid_sampler",
}
"""Operators that CUDA replaces by cuDNN's, absent from the reference's build."""
_REASONS = {
    "fft.": "the CPU's front refuses half precision before any operator: computed in float32",
    "weight_norm": "norms of float16 are float32 in CUDA's kernel; the reference's shape rule forgets it",
    "renorm": "in backward the CPU's C++ adds norms up in float64, and rounds them",
    "nn.functional.max_unpool2d": "the CPU's result keeps channels last, of CUDA's backward makes a copy",
    "nn.functional.linear_cross_entropy": "in backward the CPU's C++ adds up in float32, CUDA's as it comes",
    "masked.": "a number of the host becomes a tensor there by a copy, here by a fill",
    "__getitem__": "indices from the host are copied here at once, there by an operator",
    "nn.Transformer": "torch's Python code leaves its fast path out where a mode is on (docs/emulation.md)",
    "as_strided.partial_views": "its sample is a view of memory that is not copied with it",
}
_REFUSED_THERE, _BACKWARD_REFUSED = "refused by the reference", "same; backward refused by the reference"
_LIBRARY = "cuDNN's operator, which the reference is built without"


def samples(most: int, entries: list[Any] | None = None) -> list[choices.Sample]:
    """Return all samples, up to `most` of each entry."""
    torch.manual_seed(0)
    chosen = choices.all_entries() if entries is None else entries
    operator_samples = list(choices.samples_of_operators(chosen, most))
    if entries is not None:
        return operator_samples
    return [*operator_samples, *choices.own_samples(), *choices.samples_of_modules(most)]


def compare_choices(operator_samples: list[choices.Sample]) -> Listed:
    """Compare each sample on the emulated device with the reference."""
    listed = Listed()
    pairs = zip(
        operator_samples,
        choices.choices_on_fakes(operator_samples, composites_with_kernel()),
        choices.choices_on_emulator(operator_samples),
        strict=True,
    )
    for sample, wanted, got in pairs:
        outcome, text = compare(wanted, got)
        listed.counts[outcome] += 1
        if outcome not in ("same", _REFUSED_THERE, _BACKWARD_REFUSED):
            reason = _reason(sample.name, wanted, got)
            before = listed.odd.get(sample.name)
            if before is None or (before[1] and not reason):
                listed.odd[sample.name] = (f"{outcome}: {text}", reason)
    return listed


def compare(wanted: choices.Choice, got: choices.Choice) -> tuple[str, str]:
    """Return "same" if both chose alike, else what differs and how."""
    if wanted.error:
        return _REFUSED_THERE, wanted.error[:90]
    if got.error:
        return "refused here alone", got.error[:90]
    for part in ("operators", "kept", "results"):
        theirs, ours = getattr(wanted, part), getattr(got, part)
        if theirs != ours:
            return f"{part} differ", f"{theirs} / {ours}"
    if wanted.backward_error:
        return _BACKWARD_REFUSED, wanted.backward_error[:90]
    if got.backward_error:
        return "backward refused here alone", got.backward_error[:90]
    for part in ("backward", "gradients"):
        theirs, ours = getattr(wanted, part), getattr(got, part)
        if theirs != ours:
            return f"{part} differ", f"{theirs} / {ours}"
    return "same", ""


def _reason(name: str, wanted: choices.Choice, got: choices.Choice) -> str:
    library = {_CUDNN.get(operator, operator) for operator in wanted.operators}
    cudnn = any(operator.startswith("cudnn_") or operator == "_cudnn_rnn" for operator in got.operators)
    if cudnn and (library == set(got.operators) or "_cudnn_rnn" in got.operators):
        return _LIBRARY
    return next((why for prefix, why in _REASONS.items() if name.startswith(prefix)), "")


# -- the sheet -------------------------------------------------------------------------------------------


def _by_reason(listed: Listed) -> str:
    reasons = Counter(why for _, why in listed.odd.values())
    return "".join(
        f"- **{why or 'without a reason'}** ({number}): "
        + ", ".join(f"`{case}`" for case, (_, reason) in sorted(listed.odd.items()) if reason == why)
        + "\n"
        for why, number in sorted(reasons.items())
    )


def with_row(text: str, every: Listed, choices_listed: Listed) -> str:
    """Return the sheet's `text` with a row for the running torch."""
    before, _, table = text.partition(BESIDE)
    version = torch.__version__.partition("+")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| 2.")]
    left = {**every.unexplained, **choices_listed.unexplained}
    new = [
        version,
        str(choices_listed.counts.total()),
        str(choices_listed.counts["same"]),
        ", ".join(f"`{case}`" for case in left),
    ]
    rows = sorted(
        [*(row for row in rows if row[0] != version), new], key=lambda row: [*map(int, row[0].split("."))]
    )
    columns = ["torch", "samples", "the same", "without a reason"]
    return f"{before.rstrip()}\n\n{BESIDE}\n\n{_sheet.table(columns, [list(row) for row in rows])}"


def sheet(every: Listed, choices_listed: Listed, rows: list[list[object]], seconds: float) -> str:
    text = _sheet.header("Operators are CUDA's", "python benchmarks/cuda_operators.py --write", METHOD)
    left = len(every.unexplained) + len(choices_listed.unexplained)
    text += (
        f"{choices_listed.counts.total()} samples, {seconds:.0f} s. **{left} differ without a reason.**\n\n"
    )
    text += (
        f"## What operators keep, launch and take\n\n{costs.WORDS}\n\n{_sheet.table(costs.COLUMNS, rows)}\n"
    )
    text += "## Overloads with a kernel for CUDA and none for the CPU\n\n"
    text += "By `native_functions.yaml` of this torch.\n\n"
    text += _sheet.table(["stands for it", "overloads"], [list(row) for row in sorted(every.counts.items())])
    text += f"\n{_by_reason(every)}\n## Operators of both passes, and tensors kept for backward\n\n"
    text += _sheet.table(
        ["beside torch's choice", "samples"], [list(row) for row in sorted(choices_listed.counts.items())]
    )
    return f"{text}\n{_by_reason(choices_listed)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the sheet")
    parser.add_argument("--beside", action="store_true", help="write this torch's row alone")
    parser.add_argument("--most", type=int, default=4, help="samples of each entry")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # meta kernels that fail say so at length
    torch.set_num_threads(1)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every, choices_listed = overloads(), compare_choices(samples(options.most))
        rows = costs.rows()
    for listed in (every, choices_listed):
        print(dict(listed.counts))
        for case, text in listed.unexplained.items():
            print(f"  without a reason: {case}: {text}")
    print(_sheet.table(costs.COLUMNS, rows))
    path = _sheet.SHEETS / "cuda_operators.md"
    before = path.read_text() if path.exists() else ""
    if options.beside:
        path.write_text(with_row(before, every, choices_listed))
    elif options.write:
        text = sheet(every, choices_listed, rows, time.perf_counter() - began)
        _sheet.write("cuda_operators", text + "".join(before.partition(BESIDE)[1:]))
    return 1 if every.unexplained or choices_listed.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
