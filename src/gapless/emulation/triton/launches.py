"""Launches of Triton kernels on the emulated device: evaluated on the CPU, and recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import torch

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.emulation.triton.compiling import runtime_arguments
from gapless.kernels.evaluate import MAX_ELEMENTS, Kernel, LaunchCost, OverBudget, Unsupported, evaluate
from gapless.model.programme import Entry
from gapless.torch_internals import DisableTorchFunction, without_modes

_NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8",
}  # fmt: skip
_Key = tuple[Any, ...]
_BUDGET_VARIABLE = "GAPLESS_KERNEL_BUDGET"
"""Environment variable: how many elements one launch may compute."""


class TritonLaunches:
    """Runs launches; caches parsed kernels, recorded entries, and launches not to be evaluated again."""

    def __init__(self, core: EmulationCore) -> None:
        self.core = core
        self._kernels: dict[str, Kernel | str] = {}
        self._entries: dict[_Key, Entry] = {}
        self._given_up: set[_Key] = set()
        setting = os.environ.get(_BUDGET_VARIABLE, "")
        self._budget = (
            int(float(setting)) if setting.replace(".", "").replace("e", "").isdigit() else MAX_ELEMENTS
        )

    def launch(self, compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        """Run `compiled` (an ``EvaluatedKernel``) on `grid`.

        Raises:
            ValueError: a tensor among `arguments` is on the host, with Triton's text.
        """
        if math.prod(grid) <= 0:
            return
        graphs = self.core.graphs
        if graphs.capture is None:
            self._launch(compiled, grid, arguments)
            return
        graphs.launch(
            f"triton::{compiled.name}",
            lambda *new_arguments: self._launch(compiled, grid, new_arguments),
            arguments,
            trees.tensors(arguments),
            lambda: self._launch(compiled, grid, arguments),
        )

    def _launch(self, compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        values = list(_unwrap_arguments(runtime_arguments(compiled.src, arguments)))
        tensors = _tensors_of(values)
        self._check_pointers(values)
        memory = self.core.placement.memory
        if memory is not None:
            memory.operator = f"triton::{compiled.name}"
            memory.record_use(tensors)
        key = (compiled.hash, grid, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        kernel = self._kernel(compiled)
        cost = None
        if isinstance(kernel, str):
            self._note_unknown(compiled, kernel)
        elif self.core.values is not None and self.core.values.lacks(tensors):
            self.core.values.mark_written(compiled.name, _read_and_written(kernel, values)[1])
        elif key in self._given_up:
            _forget(kernel, values)
        else:
            cost = self._evaluate(compiled, kernel, values, grid, key)
        self._record(compiled, kernel, values, cost, key)

    # -- evaluating --------------------------------------------------------------------------------

    def _kernel(self, compiled: Any) -> Kernel | str:
        """Return the parsed kernel, or the reason why it cannot be evaluated; each TTIR is parsed once."""
        kernel = self._kernels.get(compiled.hash)
        if kernel is None:
            try:
                with _outside_emulation():
                    kernel = Kernel(compiled.asm["ttir"])
            except Unsupported as error:
                kernel = str(error)
            self._kernels[compiled.hash] = kernel
        return kernel

    def _evaluate(
        self, compiled: Any, kernel: Kernel, values: list[Any], grid: tuple[int, int, int], key: _Key
    ) -> LaunchCost | None:
        try:
            with _outside_emulation():
                arguments = _match_ttir(kernel, values)
                find = self.core.placement.storages
                return evaluate(kernel, arguments, grid, find=find, budget=self._budget)
        except OverBudget as error:
            reason = f"it computes more than a check has time for ({_BUDGET_VARIABLE} allows more)"
            cost: LaunchCost | None = error.cost
        except Unsupported as error:
            reason, cost = f"{error} is not evaluated", None
        except Exception as error:
            reason, cost = f"evaluating it failed ({type(error).__name__}: {error})".split("\n")[0], None
        self._given_up.add(key)
        self._note_unknown(compiled, reason)
        _forget(kernel, values)
        return cost

    def _note_unknown(self, compiled: Any, reason: str) -> None:
        self.core.note(
            f"the Triton kernel {compiled.name} was launched and not evaluated: {reason}; what it writes is "
            "taken as zeros, so values that depend on it are not known"
        )

    def _check_pointers(self, values: Sequence[Any]) -> None:
        for position, value in enumerate(map(_tensor_of, values)):
            if value is not None and value.numel():
                state = self.core.placement.state_of(value)
                if state == HOST and not value.is_cuda:
                    raise ValueError(
                        f"Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?)"
                    )

    # -- recording ---------------------------------------------------------------------------------

    def _record(
        self, compiled: Any, kernel: Kernel | str, values: list[Any], cost: LaunchCost | None, key: _Key
    ) -> None:
        if self.core.races.full:
            read, written = _read_and_written(kernel, values)
            index = max(map(self.core.device_of, (*read, *written)), default=0)
            self.core.races.record_launch(f"triton::{compiled.name}", read, written, max(index, 0))
        programme = self.core.recorder.programme
        if programme is None or local.quiet or not self.core.enabled:
            return
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _entry(compiled.name, kernel, values, cost)
        programme.event(
            msgspec.structs.replace(entry, backward=local.backward != HOST, optimizer=programme.optimizing)
        )


def _entry(name: str, kernel: Kernel | str, values: list[Any], cost: LaunchCost | None) -> Entry:
    """Build the recorded entry of a launch; without `cost` every tensor counts as read or written once."""
    read, written = _read_and_written(kernel, values)
    dtype = str(next((tensor.dtype for tensor in (*read, *written)), "")).removeprefix("torch.")
    reads, writes = _bytes_of(read), _bytes_of(written)
    flops, tf32 = 0, False
    if cost is not None:
        reads, writes = _dram_traffic(cost.read, values), _dram_traffic(cost.written, values)
        flops, tf32 = cost.flops, cost.tf32
        dtype = _NAMES.get(cost.products, "float8" if cost.products.startswith("f8") else dtype)
    return Entry(
        name=f"triton::{name}",
        dtype=dtype,
        inputs=tuple(tuple(map(int, tensor.shape)) for tensor in read[:8]),
        outputs=tuple(tuple(map(int, tensor.shape)) for tensor in written[:8]),
        tensors=len(read),
        elements=sum(tensor.numel() for tensor in read),
        reads=reads,
        writes=writes,
        flops=flops,
        tf32=tf32,
    )


def _read_and_written(
    kernel: Kernel | str, values: list[Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors that the kernel reads, and those that it writes."""
    if isinstance(kernel, str):
        return _tensors_of(values), []
    places = _argument_positions(values)

    def held(arguments: Iterable[int]) -> list[torch.Tensor]:
        return _tensors_of(
            values[place]
            for place in dict.fromkeys(places[at] for at in sorted(arguments) if at < len(places))
        )

    return held(kernel.touched.read), held(kernel.touched.written)


def _tensor_of(value: Any) -> torch.Tensor | None:
    """The tensor of an argument or of its descriptor; None for other values."""
    tensor = value.tensor if isinstance(value, _Descriptor) else value
    return tensor if isinstance(tensor, torch.Tensor) else None


def _tensors_of(values: Iterable[Any]) -> list[torch.Tensor]:
    return [tensor for tensor in map(_tensor_of, values) if tensor is not None]


def _bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(
        min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()) for tensor in tensors
    )


def _dram_traffic(book: dict[int, int], values: list[Any]) -> int:
    """DRAM traffic in bytes: at most each storage's size, as repeated accesses hit the caches."""
    sizes = {
        storage.data_ptr(): storage.nbytes()
        for storage in (tensor.untyped_storage() for tensor in _tensors_of(values))
    }
    return sum(min(count, sizes.get(address, count)) for address, count in book.items())


# -- arguments -----------------------------------------------------------------------------------------


class _Descriptor:
    """The contents of a tensor descriptor created on the host."""

    def __init__(self, value: Any) -> None:
        self.tensor = _tensor(value.base)
        self.sizes = [int(size) for size in value.shape]
        self.strides = [int(stride) for stride in value.strides]
        self.padding = float("nan") if getattr(value, "padding", "zero") == "nan" else 0.0
        self.rounds = bool(getattr(value, "round_f32_to_tf32", False))


def _tensor(value: Any) -> Any:
    """Unwrap a tensor from ``triton.reinterpret``; return other values unchanged."""
    while not isinstance(value, torch.Tensor) and hasattr(value, "base") and hasattr(value, "data_ptr"):
        value = value.base
    return value


def _unwrap_arguments(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "block_shape") and hasattr(value, "strides"):
            yield _Descriptor(value)
        else:
            yield _tensor(value)


def _match_ttir(kernel: Kernel, values: list[Any]) -> list[Any]:
    """Return the arguments in the form of the TTIR's function; a descriptor may become several.

    Raises:
        Unsupported: the number of arguments does not match.
    """
    kinds = kernel.types
    arguments: list[Any] = []
    for value in values:
        if not isinstance(value, _Descriptor):
            arguments.append(value)
            continue
        if len(arguments) < len(kinds) and kinds[len(arguments)].pointee:  # taken apart, for GPUs without TMA
            arguments += [value.tensor, *value.sizes, *value.strides]
            for flag in (value.padding != 0.0, value.rounds):
                if len(arguments) < len(kinds) and kinds[len(arguments)].element == "i1":
                    arguments.append(flag)
        else:
            arguments.append((value.tensor, value.sizes, value.strides, value.padding))
        arguments += [*value.sizes, *value.strides]
    if len(arguments) != len(kinds):
        raise Unsupported(f"a kernel of {len(kinds)} arguments that is given {len(arguments)}")
    return arguments


def _argument_positions(values: list[Any]) -> list[int]:
    """For each argument of the TTIR's function, the index in `values` it comes from."""
    places: list[int] = []
    for position, value in enumerate(values):
        extra = 2 * len(value.sizes) if isinstance(value, _Descriptor) else 0
        places += [position] * (1 + extra)
    return places


def _forget(kernel: Kernel, values: list[Any]) -> None:
    """Fill what the kernel writes with zeros; tensors it also reads keep their finite values."""
    with _outside_emulation(), torch.no_grad():
        places = _argument_positions(values)
        for at in kernel.touched.written:
            if at >= len(places):
                continue
            tensor = _tensor_of(values[places[at]])
            if tensor is None:
                continue
            tensor = tensor.detach()
            if at not in kernel.touched.read:
                tensor.zero_()
            elif tensor.is_floating_point():
                tensor.nan_to_num_(0.0, 0.0, 0.0)


def _outside_emulation() -> ExitStack:
    """A context in which the emulation neither counts nor places anything: the work is not the script's."""
    stack = ExitStack()
    stack.enter_context(without_modes())
    stack.enter_context(DisableTorchFunction())
    return stack
