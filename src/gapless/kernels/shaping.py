"""Where a program is, constants, and blocks in other shapes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels.machine import Machine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp, ramp
from gapless.kernels.values import Pointer, Tensor, Unsupported, dtype_of, expanded, mapped

_DENSE = re.compile(r"dense<(.*)>$", re.DOTALL)
_WORDS = {torch.float64: "<d", torch.float32: "<f", torch.float16: "<e"}


@operation("arith.constant")
def constant(machine: Machine, op: Op) -> Tensor:
    if op.kept is None:
        op.kept = _constant(op)
    made: Tensor = op.kept
    return made


def _constant(op: Op) -> Tensor:
    text, kind = op.text, op.type
    if text in ("true", "false") and not op.given:
        return torch.tensor([text == "true"])
    dtype = dtype_of(kind.element)
    found = _DENSE.match(text)
    value = found[1] if found else text
    if value.startswith("["):
        numbers = [literal(one, dtype) for one in re.findall(r"[^\[\],\s]+", value)]
        return _made(numbers, dtype).view(1, *kind.shape)
    return _made([literal(value, dtype)], dtype).view(1, *(1,) * len(kind.shape))


def _made(numbers: list[Any], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.tensor(numbers, dtype=torch.float32).to(dtype)
    return torch.tensor(numbers, dtype=dtype)


def literal(text: str, dtype: torch.dtype) -> Any:
    """A number as MLIR prints it: hexadecimal bits for floats that have no short form."""
    if text in ("true", "false"):
        return text == "true"
    if not dtype.is_floating_point:
        return int(text, 0)
    if not text.startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if dtype is torch.bfloat16:
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    word = _WORDS.get(dtype)
    if word is None:
        return float(torch.tensor([bits], dtype=torch.uint8).view(dtype).float())
    return struct.unpack(word, bits.to_bytes(dtype.itemsize, "little"))[0]


@operation("ub.poison", "llvm.mlir.poison", "llvm.mlir.undef")
def poison(machine: Machine, op: Op) -> Any:
    kind = op.type
    if kind.pointee:
        return Pointer(kind.pointee, None, torch.zeros(1, *(1,) * len(kind.shape), dtype=torch.int64))
    return torch.zeros(1, *(1,) * len(kind.shape), dtype=dtype_of(kind.element))


def _axis(op: Op) -> int:
    word = op.text.split()[0] if op.text else ""
    return "xyz".index(word) if word in ("x", "y", "z") else op.integer("axis")


@operation("tt.get_program_id")
def program_id(machine: Machine, op: Op) -> Tensor:
    return machine.ids[_axis(op)]


@operation("tt.get_num_programs")
def program_count(machine: Machine, op: Op) -> Tensor:
    return torch.tensor([machine.grid[_axis(op)]], dtype=torch.int32)


@operation("tt.make_range")
def make_range(machine: Machine, op: Op) -> Ramp:
    if op.kept is None:
        op.kept = ramp(op.integer("start"), op.integer("end"))
    made: Ramp = op.kept
    return made


@operation("tt.splat")
def splat(machine: Machine, op: Op) -> Any:
    rank = len(op.type.shape)
    return mapped(machine.get(op)[0], lambda block: block.view(-1, *(1,) * rank))


@operation("tt.unsplat")
def unsplat(machine: Machine, op: Op) -> Any:
    return mapped(machine.get(op)[0], lambda block: block.reshape(-1))


@operation("tt.broadcast", "ttg.convert_layout")
def broadcast(machine: Machine, op: Op) -> Any:
    """Nothing: a block that is the same along an axis is kept once."""
    return machine.raw(op)[0]


@operation("tt.expand_dims")
def expand_dims(machine: Machine, op: Op) -> Any:
    axis = op.integer("axis") + 1
    value = machine.raw(op)[0]
    return _arranged(value, lambda ramp: ramp.expand_dims(axis), lambda block: block.unsqueeze(axis))


def _arranged(value: Any, of_ramp: Callable[[Ramp], Ramp], of_block: Callable[[Tensor], Tensor]) -> Any:
    """`value` with other axes: what is a ramp stays one."""
    if isinstance(value, Pointer) and isinstance(value.at, Ramp):
        return Pointer(value.element, value.memory, of_ramp(value.at))
    return of_ramp(value) if isinstance(value, Ramp) else mapped(value, of_block)


@operation("tt.reshape")
def reshape(machine: Machine, op: Op) -> Any:
    before, after = op.given[0].shape, op.type.shape

    def change(block: Tensor) -> Tensor:
        if block.numel() == block.shape[0]:
            return block.reshape(-1, *(1,) * len(after))
        kept = _kept(block.shape[1:], before, after)
        if kept is not None:
            return block.reshape(-1, *kept)
        return expanded(block, before).reshape(-1, *after)

    return mapped(machine.get(op)[0], change)


def _kept(sizes: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """The sizes where only axes of size 1 come or go: what is kept once stays so. None elsewhere."""
    whole = [size for size, full in zip(sizes, before, strict=True) if full != 1]
    if [full for full in before if full != 1] != [full for full in after if full != 1]:
        return None
    left = iter(whole)
    return tuple(1 if full == 1 else next(left) for full in after)


@operation("tt.trans")
def transpose(machine: Machine, op: Op) -> Any:
    order = op.integers("order") or (1, 0)
    axes = [0, *(axis + 1 for axis in order)]
    value = machine.raw(op)[0]
    return _arranged(value, lambda ramp: ramp.permute(axes), lambda block: block.permute(axes))


@operation("tt.join")
def join(machine: Machine, op: Op) -> Any:
    return _together(machine.get(op), lambda blocks: torch.stack(torch.broadcast_tensors(*blocks), -1))


@operation("tt.cat")
def cat(machine: Machine, op: Op) -> Any:
    shapes = [kind.shape for kind in op.given] or [op.type.shape]

    def change(blocks: list[Tensor]) -> Tensor:
        count = max(block.shape[0] for block in blocks)
        full = [
            block.expand(count, *shape)
            for block, shape in zip(blocks, shapes * (3 - len(shapes)), strict=False)
        ]
        return torch.cat(full, 1)

    return _together(machine.get(op), change)


def _together(values: list[Any], change: Any) -> Any:
    if not isinstance(values[0], Pointer):
        return change(values)
    if any(one.memory is not values[0].memory for one in values):
        values = [one.absolute for one in values]
    return Pointer(values[0].element, values[0].memory, change([one.places for one in values]))


@operation("tt.split")
def split(machine: Machine, op: Op) -> Any:
    value = machine.get(op)[0]
    return [mapped(value, lambda block: block[..., 0]), mapped(value, lambda block: block[..., -1])]


@operation("tt.gather")
def gather(machine: Machine, op: Op) -> Tensor:
    source, index = machine.get(op)
    axis = op.integer("axis") + 1
    shapes = [kind.shape for kind in op.given]
    if len(shapes) < 2:
        raise Unsupported("tt.gather as this Triton prints it")
    count = max(source.shape[0], index.shape[0])
    source = source.expand(count, *shapes[0])
    index = index.expand(count, *shapes[1]).long().clamp(0, source.shape[axis] - 1)
    return torch.gather(source, axis, index)


@operation("tt.assert", "tt.print", "llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier",
           "nvvm.barrier0", "nvvm.barrier")  # fmt: skip
def nothing(machine: Machine, op: Op) -> None:
    """Says something, or holds programs together that run in step anyway."""
