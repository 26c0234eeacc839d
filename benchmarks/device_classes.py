"""Everything that could be on the wrong device, or missing from it, found by asking torch what there is.

    python benchmarks/device_classes.py            # counts, and what is not explained
    python benchmarks/device_classes.py --write    # writes benchmarks/sheets/device_classes.md

Five classes, each enumerated: every entry of ``op_db`` with each of its tensors on the device in turn, beside
what `FakeTensorMode` says; every type of number that CUDA takes and the CPU does not; every overload of
ATen that has a CUDA kernel and none for the CPU; every higher-order operator; and the ways of moving, making
and converting tensors, with what each waits for. Exits with 1 when something is not as expected and has no
reason below.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _sheet
import numpy
import torch
from _idioms import IDIOMS
from _op_samples import sample_inputs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gapless.emulation import kernels
from gapless.emulation.dispatch import higher_order
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

Tensor = torch.Tensor
Put = Callable[[Tensor, bool], Tensor]
METHOD = (
    "the emulated device is an NVIDIA H100. The reference for devices is `FakeTensorMode` with CUDA's name "
    "and a device guard that does nothing, without gradients; operators and types are those torch lists"
)


@dataclass
class Category:
    """A category's counts, and what is not as expected: ``case → (description, reason or "")``."""

    title: str
    counts: Counter[str] = field(default_factory=Counter)
    odd: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def unexplained(self) -> dict[str, str]:
        return {case: text for case, (text, why) in self.odd.items() if not why}


# -- each argument on the device in turn ----------------------------------------------------------------

_DATA = ("DataDependentOutput", "DynamicOutputShape", "not compiled with CUDA", "its data is not allocated")
_CHECKED = ("wrapper_CUDA_", "Input type (torch.", "and bias type")
_REASONS = {
    "as_strided_scatter": "copies `src` into a clone of `self`, as slice_scatter does",
    "select_scatter": "copies `src` into a clone of `self`, as slice_scatter does",
    "_unsafe_masked_index_put_accumulate": "adds what it has selected, element by element",
    "sparse.": "the reference leaves sparse arguments on the host",
    "nn.functional.linear_cross_entropy": "its products and its loss check devices",
    "torch.ops.aten._efficient_attention_forward": "seed and offset are on the host unless captured",
}


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Give CUDA the device guard of "meta", which does nothing, if there is no CUDA device."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14
    before = guards[cuda]
    if not before or not torch.cuda.is_available():
        guards[cuda] = guards[meta]
    try:
        yield
    finally:
        guards[cuda] = before


def placements(entries: list[Any], most: int = 4) -> Iterator[tuple[Any, list[Any], Any, dict[int, bool]]]:
    """Yield ``(entry, flat arguments, structure, which of them are on the device)``."""
    for op in entries:
        dtype = next(
            (
                candidate
                for candidate in (torch.float32, torch.int64)
                if candidate in op.supported_dtypes("cpu")
            ),
            None,
        )
        if dtype is None:
            continue
        try:
            sample = next(sample_inputs(op, dtype))
        except Exception:
            continue
        flat, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        at = [position for position, value in enumerate(flat) if isinstance(value, Tensor)]
        turns = [dict.fromkeys(at, True)]
        if len(at) > 1:
            turns += [{position: position == chosen for position in at} for chosen in at]
        for turn in turns[:most]:
            yield op, flat, structure, turn


def result_devices(
    op: Any, flat: list[Any], structure: Any, put: Callable[[Tensor, bool], Tensor], turn: Any
) -> Any:
    """Return the devices of the results, or the error."""
    placed = [
        put(value, turn[position]) if position in turn else value for position, value in enumerate(flat)
    ]
    first, rest, options = tree_unflatten(placed, structure)
    try:
        out = op.op(first, *rest, **options)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return tuple(str(tensor.device) for tensor in tree_flatten(out)[0] if isinstance(tensor, Tensor))


def compare_devices(entries: list[Any]) -> Category:
    """Compare every entry with all, and with each single, tensor on the device."""
    devices_class = Category("Each argument on the device in turn")
    cases = list(placements(entries))
    truth = []
    for case in cases:
        with fake_cuda(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            truth.append(result_devices(*case[:3], _to_fake, case[3]))
    with Emulator(EmulatorOptions("H100")), torch.no_grad():
        got = [result_devices(*case[:3], _place, case[3]) for case in cases]
    for (op, _, _, turn), said, devices_seen in zip(cases, truth, got, strict=True):
        kind = _compare(said, devices_seen)
        devices_class.counts[kind] += 1
        if kind != "same":
            name = f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"
            case_name = f"{name} {''.join('cg'[on_gpu] for on_gpu in turn.values())}"
            devices_class.odd[case_name] = (
                f"{kind}: {_shorten(said)} / {_shorten(devices_seen)}",
                _reason(name, said, devices_seen),
            )
    return devices_class


def _place(tensor: Tensor, on_gpu: bool) -> Tensor:
    return tensor.to("cuda") if on_gpu else tensor.clone()


def _to_fake(tensor: Tensor, on_gpu: bool) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    device = "cuda" if on_gpu else "cpu"
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _compare(said: Any, got: Any) -> str:
    failed = isinstance(said, str), isinstance(got, str)
    if said == got or failed == (True, True):
        return "same"
    return (
        "refused by the reference alone"
        if failed[0]
        else "refused here alone"
        if failed[1]
        else "devices differ"
    )


def _reason(name: str, said: Any, got: Any) -> str:
    if isinstance(said, str) and any(word in said for word in _DATA):
        return "the reference has no values"
    if isinstance(got, str) and any(word in got for word in _CHECKED):
        return "a check that CUDA's wrapper has and the reference leaves out"
    return next((why for prefix, why in _REASONS.items() if name.startswith(prefix)), "")


def _shorten(devices_or_error: Any) -> str:
    return devices_or_error[:90] if isinstance(devices_or_error, str) else ", ".join(devices_or_error)


# -- types of numbers ------------------------------------------------------------------------------------

_TYPES = {
    "nansum": "nansum and nanmean of complex numbers",
    "nanmean": "nansum and nanmean of complex numbers",
    "nn.functional.silu": "the entry's sample of integers: CUDA refuses it, too",
}


def try_types(entries: list[Any]) -> Category:
    """Run every entry with each dtype that CUDA accepts and the CPU does not."""
    types_class = Category("Types of numbers that only CUDA's kernels take")
    with Emulator(EmulatorOptions("H100")), torch.no_grad():
        for op in entries:
            for dtype in sorted(set(op.supported_dtypes("cuda")) - set(op.supported_dtypes("cpu")), key=str):
                try:
                    sample = next(sample_inputs(op, dtype))
                except Exception:
                    types_class.counts["the entry has no sample"] += 1
                    continue
                moved = tree_map(_to_device, (sample.input, sample.args, sample.kwargs))
                try:
                    op.op(moved[0], *moved[1], **moved[2])
                    types_class.counts["ran"] += 1
                except Exception as error:
                    types_class.counts["refused"] += 1
                    case = f"{op.name} {str(dtype).removeprefix('torch.')}"
                    types_class.odd[case] = (str(error).splitlines()[0][:90], _TYPES.get(op.name, ""))
    return types_class


def _to_device(value: Any) -> Any:
    return value.to("cuda") if isinstance(value, Tensor) else value


# -- operators that CUDA alone has -------------------------------------------------------------------------

_HANDLED = {"record_stream": "a note to the allocator"}
_REFUSED = {
    "_scaled_grouped_mm_v2": "products of blocks with scales of several kinds",
    "_triton_multi_head_attention": "an experiment of torch's own, behind no public function",
    "_sparse_semi_structured_tile": "chooses which numbers to keep: its order of them is CUTLASS's",
    "_sparse_semi_structured_apply": "takes what _sparse_semi_structured_tile gives",
    "_sparse_semi_structured_apply_dense": "takes what _sparse_semi_structured_tile gives",
}


def cuda_only() -> Iterator[Any]:
    """Yield every overload of ATen with a CUDA kernel and, by the dispatcher, none for the CPU."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.model import DispatchKey

    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    for function in parsed.native_functions:
        name, _, overload = str(function.func.name).partition(".")
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or not cuda.has_kernel(function):
            continue
        func = getattr(packet, overload or "default", None)
        if func is not None and "miopen" not in name and kernels.lacks_cpu_kernel(func):
            yield func


def list_operators() -> Category:
    """List how each CUDA-only overload is run."""
    listed = Category("Operators that ATen has for CUDA alone")
    for func in cuda_only():
        short = func.name().removeprefix("aten::")
        how = "handled" if short in _HANDLED else kernels.find_kernel(func)[0]
        listed.counts[how] += 1
        if how in ("refused", "shapes"):
            remark = "refused by name" if how == "refused" else "zeros of the right shape, noted"
            listed.odd[short] = (remark, remark if how == "shapes" else _REFUSED.get(short, ""))
    return listed


# -- higher-order operators ------------------------------------------------------------------------------

_COMPILED = "a node of compiled graphs: torch has no kernel to call for it either"


def list_higher_order() -> Category:
    """List which higher-order operators have a kernel that is called."""
    import importlib
    import pkgutil

    import torch._higher_order_ops

    listed = Category("Higher-order operators")
    for module in pkgutil.iter_modules(torch._higher_order_ops.__path__):
        try:
            importlib.import_module(f"torch._higher_order_ops.{module.name}")
        except Exception:
            listed.counts["modules that cannot be imported"] += 1
    for name, operator in sorted(torch._ops._higher_order_ops.items()):
        kernel = higher_order.kernel_of(operator, True)
        calls = _is_plain_call(operator)
        listed.counts["kernel" if kernel is not None else "called in Python" if calls else "none"] += 1
        if kernel is None and not calls:
            listed.odd[name] = ("no kernel", _COMPILED if not _has_dense_kernel(operator) else "")
    return listed


def _is_plain_call(operator: Any) -> bool:
    """Whether calling it runs its function without dispatch."""
    code = type(operator).__call__.__code__
    return "__call__" not in code.co_names and "super" not in code.co_names


def _has_dense_kernel(operator: Any) -> bool:
    key = torch._C.DispatchKey
    return any(
        backend in operator.py_kernels for backend in (key.CUDA, key.CPU, key.CompositeExplicitAutograd)
    )


# -- idioms ----------------------------------------------------------------------------------------------


def compare_idioms() -> Category:
    """Compare each idiom's device, type and waits with the table."""
    listed = Category("Ways of moving, making and converting")
    with Emulator(EmulatorOptions("H100")) as emulator, torch.no_grad():
        observed = {spelled: observe(spelled, emulator) for spelled in IDIOMS}
    for spelled, (device, waits) in IDIOMS.items():
        result = observed[spelled]
        good = result == (device, waits)
        listed.counts["as in the table" if good else "otherwise"] += 1
        if not good:
            listed.odd[spelled] = (
                f"expected {device} and {waits} waits, seen {result[0]} and {result[1]}",
                "",
            )
    return listed


def observe(spelled: str, emulator: Emulator) -> tuple[str, int]:
    """Return the device of an idiom's result (else its type or error) and the number of its waits."""
    names = {
        "torch": torch, "copy": copy, "c": torch.tensor([1.0, 2.0, 3.0]), "g": torch.ones(3, device="cuda"),
        "p": torch.ones(3).pin_memory(), "n": numpy.ones(3, dtype="float32"),
    }  # fmt: skip
    before = emulator.recorder.total
    try:
        out = eval(spelled, names)
    except Exception as error:
        return type(error).__name__, emulator.recorder.total - before
    device = str(out.device) if isinstance(out, Tensor) else type(out).__name__
    return device, emulator.recorder.total - before


# -- the sheet -------------------------------------------------------------------------------------------


def all_categories(entries: list[Any]) -> list[Category]:
    return [
        compare_devices(entries),
        try_types(entries),
        list_operators(),
        list_higher_order(),
        compare_idioms(),
    ]


def sheet(classes: list[Category], seconds: float) -> str:
    parts = [_sheet.header("Classes of devices", "python benchmarks/device_classes.py --write", METHOD)]
    open_ones = sum(len(category.unexplained) for category in classes)
    cases = sum(category.counts.total() for category in classes)
    parts.append(f"{cases} cases, {seconds:.0f} s. **{open_ones} are not as expected without a reason.**\n")
    for category in classes:
        parts.append(f"## {category.title}\n")
        parts.append(
            _sheet.table(["outcome", "number"], [list(row) for row in sorted(category.counts.items())])
        )
        reasons = Counter(why for _, why in category.odd.values())
        parts += [f"### {why or 'Without a reason'}: {number}\n\n" + ", ".join(
            f"`{case}`" for case, (_, reason) in sorted(category.odd.items()) if reason == why
        ) + "\n" for why, number in sorted(reasons.items())]  # fmt: skip
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the sheet")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # meta kernels that fail say so at length
    torch.set_num_threads(1)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = all_categories(list(op_db))
    seconds = time.perf_counter() - began
    for category in classes:
        print(f"{category.title}: {dict(category.counts)}")
        for case, text in category.unexplained.items():
            print(f"  without a reason: {case}: {text}")
    if options.write:
        _sheet.write("device_classes", sheet(classes, seconds))
    return 1 if any(category.unexplained for category in classes) else 0


if __name__ == "__main__":
    sys.exit(main())
