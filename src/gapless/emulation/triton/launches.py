"""A launch on the emulated device: evaluated, and counted as one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import torch

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.emulation.triton.compiling import leaves
from gapless.kernels.evaluate import MAX_ELEMENTS, Kernel, LaunchCost, OverBudget, Unsupported, evaluate
from gapless.model.programme import Entry
from gapless.torch_internals import DisableTorchFunction, without_modes

_NAMES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8",
}  # fmt: skip
_Key = tuple[Any, ...]
_BUDGET = "GAPLESS_KERNEL_BUDGET"
"""Environment variable: how many elements one launch may compute."""


class Launches:
    """Carries launches out, and remembers what is known of each kernel."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._kernels: dict[str, Kernel | str] = {}
        self._entries: dict[_Key, Entry] = {}
        self._given_up: set[_Key] = set()
        written = os.environ.get(_BUDGET, "")
        self._budget = (
            int(float(written)) if written.replace(".", "").replace("e", "").isdigit() else MAX_ELEMENTS
        )

    def launch(self, compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        """Run `compiled` (an ``EvaluatedKernel``) on `grid`.

        Raises:
            ValueError: a tensor among `arguments` is on the host, in Triton's words.
        """
        if math.prod(grid) <= 0:
            return
        graphs = self.core.graphs
        if graphs.capture is None:
            self._launch(compiled, grid, arguments)
            return
        graphs.call(
            f"triton::{compiled.name}",
            lambda *given: self._launch(compiled, grid, given),
            arguments,
            trees.tensors(arguments),
            lambda: self._launch(compiled, grid, arguments),
        )

    def _launch(self, compiled: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        values = list(_expanded(leaves(compiled.src, arguments)))
        tensors = _held(values)
        self._check(values)
        memory = self.core.placement.memory
        if memory is not None:
            memory.operator = f"triton::{compiled.name}"
            memory.uses(tensors)
        key = (compiled.hash, grid, tuple((tuple(one.shape), one.dtype) for one in tensors))
        kernel = self._kernel(compiled)
        cost = None
        if isinstance(kernel, str):
            self._unknown(compiled, kernel)
        elif self.core.values is not None and self.core.values.lacks(tensors):
            self.core.values.written(compiled.name, _touched(kernel, values)[1])
        elif key in self._given_up:
            _forget(kernel, values)
        else:
            cost = self._evaluated(compiled, kernel, values, grid, key)
        self._record(compiled, kernel, values, cost, key)

    # -- evaluating --------------------------------------------------------------------------------

    def _kernel(self, compiled: Any) -> Kernel | str:
        """The kernel, or why nothing is known of it; the same TTIR is read once."""
        found = self._kernels.get(compiled.hash)
        if found is None:
            try:
                with _unseen():
                    found = Kernel(compiled.asm["ttir"])
            except Unsupported as error:
                found = str(error)
            self._kernels[compiled.hash] = found
        return found

    def _evaluated(
        self, compiled: Any, kernel: Kernel, values: list[Any], grid: tuple[int, int, int], key: _Key
    ) -> LaunchCost | None:
        try:
            with _unseen():
                given = _matched(kernel, values)
                find = self.core.placement.storages
                return evaluate(kernel, given, grid, find=find, budget=self._budget)
        except OverBudget as error:
            reason = f"it computes more than a check has time for ({_BUDGET} allows more)"
            cost: LaunchCost | None = error.cost
        except Unsupported as error:
            reason, cost = f"{error} is not evaluated", None
        except Exception as error:
            reason, cost = f"evaluating it failed ({type(error).__name__}: {error})".split("\n")[0], None
        self._given_up.add(key)
        self._unknown(compiled, reason)
        _forget(kernel, values)
        return cost

    def _unknown(self, compiled: Any, reason: str) -> None:
        self.core.note(
            f"the Triton kernel {compiled.name} was launched and not evaluated: {reason}; what it writes is "
            "taken as zeros, so values that depend on it are not known"
        )

    def _check(self, values: Sequence[Any]) -> None:
        for position, value in enumerate(map(_tensor_of, values)):
            if value is not None and value.numel():
                state = self.core.placement.state_of(value)
                if state == HOST and not value.is_cuda:
                    raise ValueError(
                        f"Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?)"
                    )

    # -- the books ---------------------------------------------------------------------------------

    def _record(
        self, compiled: Any, kernel: Kernel | str, values: list[Any], cost: LaunchCost | None, key: _Key
    ) -> None:
        if self.core.races.full:
            read, written = _touched(kernel, values)
            index = max(map(self.core.device_of, (*read, *written)), default=0)
            self.core.races.launched(f"triton::{compiled.name}", read, written, max(index, 0))
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
    """What the programme keeps of a launch; without a cost every tensor is read or written once, whole."""
    read, written = _touched(kernel, values)
    dtype = str(next((one.dtype for one in (*read, *written)), "")).removeprefix("torch.")
    reads, writes = _bytes(read), _bytes(written)
    flops, tf32 = 0, False
    if cost is not None:
        reads, writes = _moved(cost.read, values), _moved(cost.written, values)
        flops, tf32 = cost.flops, cost.tf32
        dtype = _NAMES.get(cost.products, "float8" if cost.products.startswith("f8") else dtype)
    return Entry(
        name=f"triton::{name}",
        dtype=dtype,
        inputs=tuple(tuple(map(int, one.shape)) for one in read[:8]),
        outputs=tuple(tuple(map(int, one.shape)) for one in written[:8]),
        tensors=len(read),
        elements=sum(one.numel() for one in read),
        reads=reads,
        writes=writes,
        flops=flops,
        tf32=tf32,
    )


def _touched(kernel: Kernel | str, values: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that are read and those that are written."""
    if isinstance(kernel, str):
        return _held(values), []
    places = _positions(values)

    def held(arguments: Iterable[int]) -> list[torch.Tensor]:
        return _held(
            values[place]
            for place in dict.fromkeys(places[at] for at in sorted(arguments) if at < len(places))
        )

    return held(kernel.touched.read), held(kernel.touched.written)


def _tensor_of(value: Any) -> torch.Tensor | None:
    """The tensor that an argument is, or describes."""
    found = value.tensor if isinstance(value, _Described) else value
    return found if isinstance(found, torch.Tensor) else None


def _held(values: Iterable[Any]) -> list[torch.Tensor]:
    return [one for one in map(_tensor_of, values) if one is not None]


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(min(one.numel() * one.element_size(), one.untyped_storage().nbytes()) for one in tensors)


def _moved(book: dict[int, int], values: list[Any]) -> int:
    """Bytes that go between the chip and its memory: of what is read again, once, as caches keep it."""
    sizes = {
        storage.data_ptr(): storage.nbytes() for storage in (one.untyped_storage() for one in _held(values))
    }
    return sum(min(count, sizes.get(address, count)) for address, count in book.items())


# -- arguments -----------------------------------------------------------------------------------------


class _Described:
    """A tensor descriptor made on the host."""

    def __init__(self, value: Any) -> None:
        self.tensor = _tensor(value.base)
        self.sizes = [int(size) for size in value.shape]
        self.strides = [int(stride) for stride in value.strides]
        self.padding = float("nan") if getattr(value, "padding", "zero") == "nan" else 0.0
        self.rounds = bool(getattr(value, "round_f32_to_tf32", False))


def _tensor(value: Any) -> Any:
    """The tensor in an argument: ``triton.reinterpret`` wraps one."""
    while not isinstance(value, torch.Tensor) and hasattr(value, "base") and hasattr(value, "data_ptr"):
        value = value.base
    return value


def _expanded(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "block_shape") and hasattr(value, "strides"):
            yield _Described(value)
        else:
            yield _tensor(value)


def _matched(kernel: Kernel, values: list[Any]) -> list[Any]:
    """Arguments as the function in the TTIR has them; a descriptor may be several of them.

    Raises:
        Unsupported: there are more or fewer.
    """
    kinds = kernel.types
    found: list[Any] = []
    for value in values:
        if not isinstance(value, _Described):
            found.append(value)
            continue
        if len(found) < len(kinds) and kinds[len(found)].pointee:  # taken apart, for GPUs without TMA
            found += [value.tensor, *value.sizes, *value.strides]
            for flag in (value.padding != 0.0, value.rounds):
                if len(found) < len(kinds) and kinds[len(found)].element == "i1":
                    found.append(flag)
        else:
            found.append((value.tensor, value.sizes, value.strides, value.padding))
        found += [*value.sizes, *value.strides]
    if len(found) != len(kinds):
        raise Unsupported(f"a kernel of {len(kinds)} arguments that is given {len(found)}")
    return found


def _positions(values: list[Any]) -> list[int]:
    """For each argument of the TTIR's function, which of `values` it comes from."""
    places: list[int] = []
    for position, value in enumerate(values):
        extra = 2 * len(value.sizes) if isinstance(value, _Described) else 0
        places += [position] * (1 + extra)
    return places


def _forget(kernel: Kernel, values: list[Any]) -> None:
    """Zeros in what the kernel writes; what it also reads stays, where it is finite."""
    with _unseen(), torch.no_grad():
        places = _positions(values)
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


def _unseen() -> ExitStack:
    """What is computed in here is not the script's: nothing is counted or placed."""
    stack = ExitStack()
    stack.enter_context(without_modes())
    stack.enter_context(DisableTorchFunction())
    return stack
