"""Operations for program numbers, constants, and blocks in other shapes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import torch

from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.nodes import Op
from gapless.kernels.ramps import Ramp, make_ramp
from gapless.kernels.values import Pointer, Tensor, Unsupported, dtype_of, expand_block, map_places

_DENSE = re.compile(r"dense<(.*)>$", re.DOTALL)
_STRUCT_FORMATS = {torch.float64: "<d", torch.float32: "<f", torch.float16: "<e"}


@operation("arith.constant")
def constant(machine: KernelMachine, op: Op) -> Tensor:
    if op.cached is None:
        op.cached = _parse_constant(op)
    value: Tensor = op.cached
    return value


def _parse_constant(op: Op) -> Tensor:
    text, kind = op.text, op.type
    if text in ("true", "false") and not op.operand_types:
        return torch.tensor([text == "true"])
    dtype = dtype_of(kind.element)
    match = _DENSE.match(text)
    value = match[1] if match else text
    if value.startswith("["):
        numbers = [parse_literal(number, dtype) for number in re.findall(r"[^\[\],\s]+", value)]
        return _make_tensor(numbers, dtype).view(1, *kind.shape)
    return _make_tensor([parse_literal(value, dtype)], dtype).view(1, *(1,) * len(kind.shape))


def _make_tensor(numbers: list[Any], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.tensor(numbers, dtype=torch.float32).to(dtype)
    return torch.tensor(numbers, dtype=dtype)


def parse_literal(text: str, dtype: torch.dtype) -> Any:
    """Parse a number as MLIR prints it: hexadecimal bits for floats without a short form."""
    if text in ("true", "false"):
        return text == "true"
    if not dtype.is_floating_point:
        return int(text, 0)
    if not text.startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if dtype is torch.bfloat16:
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    word = _STRUCT_FORMATS.get(dtype)
    if word is None:
        return float(torch.tensor([bits], dtype=torch.uint8).view(dtype).float())
    return struct.unpack(word, bits.to_bytes(dtype.itemsize, "little"))[0]


@operation("ub.poison", "llvm.mlir.poison", "llvm.mlir.undef")
def poison(machine: KernelMachine, op: Op) -> Any:
    kind = op.type
    if kind.pointee:
        return Pointer(kind.pointee, None, torch.zeros(1, *(1,) * len(kind.shape), dtype=torch.int64))
    return torch.zeros(1, *(1,) * len(kind.shape), dtype=dtype_of(kind.element))


def _program_axis(op: Op) -> int:
    word = op.text.split()[0] if op.text else ""
    return "xyz".index(word) if word in ("x", "y", "z") else op.integer("axis")


@operation("tt.get_program_id")
def program_id(machine: KernelMachine, op: Op) -> Tensor:
    return machine.ids[_program_axis(op)]


@operation("tt.get_num_programs")
def program_count(machine: KernelMachine, op: Op) -> Tensor:
    return torch.tensor([machine.grid[_program_axis(op)]], dtype=torch.int32)


@operation("tt.make_range")
def make_range(machine: KernelMachine, op: Op) -> Ramp:
    if op.cached is None:
        op.cached = make_ramp(op.integer("start"), op.integer("end"))
    numbers: Ramp = op.cached
    return numbers


@operation("tt.splat")
def splat(machine: KernelMachine, op: Op) -> Any:
    rank = len(op.type.shape)
    return map_places(machine.get(op)[0], lambda block: block.view(-1, *(1,) * rank))


@operation("tt.unsplat")
def unsplat(machine: KernelMachine, op: Op) -> Any:
    return map_places(machine.get(op)[0], lambda block: block.reshape(-1))


@operation("tt.broadcast", "ttg.convert_layout")
def broadcast(machine: KernelMachine, op: Op) -> Any:
    """Return the block unchanged: a block that is equal along an axis is stored once."""
    return machine.raw(op)[0]


@operation("tt.expand_dims")
def expand_dims(machine: KernelMachine, op: Op) -> Any:
    axis = op.integer("axis") + 1
    value = machine.raw(op)[0]
    return _rearrange(value, lambda ramp: ramp.expand_dims(axis), lambda block: block.unsqueeze(axis))


def _rearrange(value: Any, of_ramp: Callable[[Ramp], Ramp], of_block: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with other axes; a ramp stays a ramp."""
    if isinstance(value, Pointer) and isinstance(value.at, Ramp):
        return Pointer(value.element, value.memory, of_ramp(value.at))
    return of_ramp(value) if isinstance(value, Ramp) else map_places(value, of_block)


@operation("tt.reshape")
def reshape(machine: KernelMachine, op: Op) -> Any:
    before, after = op.operand_types[0].shape, op.type.shape

    def change(block: Tensor) -> Tensor:
        if block.numel() == block.shape[0]:
            return block.reshape(-1, *(1,) * len(after))
        kept = _sizes_after_reshape(block.shape[1:], before, after)
        if kept is not None:
            return block.reshape(-1, *kept)
        return expand_block(block, before).reshape(-1, *after)

    return map_places(machine.get(op)[0], change)


def _sizes_after_reshape(
    sizes: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the stored sizes if only axes of size 1 come or go, so that nothing is expanded; else None."""
    whole = [size for size, full in zip(sizes, before, strict=True) if full != 1]
    if [full for full in before if full != 1] != [full for full in after if full != 1]:
        return None
    left = iter(whole)
    return tuple(1 if full == 1 else next(left) for full in after)


@operation("tt.trans")
def transpose(machine: KernelMachine, op: Op) -> Any:
    order = op.integers("order") or (1, 0)
    axes = [0, *(axis + 1 for axis in order)]
    value = machine.raw(op)[0]
    return _rearrange(value, lambda ramp: ramp.permute(axes), lambda block: block.permute(axes))


@operation("tt.join")
def join(machine: KernelMachine, op: Op) -> Any:
    return _combine_values(machine.get(op), lambda blocks: torch.stack(torch.broadcast_tensors(*blocks), -1))


@operation("tt.cat")
def cat(machine: KernelMachine, op: Op) -> Any:
    shapes = [kind.shape for kind in op.operand_types] or [op.type.shape]

    def change(blocks: list[Tensor]) -> Tensor:
        count = max(block.shape[0] for block in blocks)
        full = [
            block.expand(count, *shape)
            for block, shape in zip(blocks, shapes * (3 - len(shapes)), strict=False)
        ]
        return torch.cat(full, 1)

    return _combine_values(machine.get(op), change)


def _combine_values(values: list[Any], change: Any) -> Any:
    if not isinstance(values[0], Pointer):
        return change(values)
    if any(pointer.memory is not values[0].memory for pointer in values):
        values = [pointer.by_address for pointer in values]
    return Pointer(values[0].element, values[0].memory, change([pointer.places for pointer in values]))


@operation("tt.split")
def split(machine: KernelMachine, op: Op) -> Any:
    value = machine.get(op)[0]
    return [map_places(value, lambda block: block[..., 0]), map_places(value, lambda block: block[..., -1])]


@operation("tt.gather")
def gather(machine: KernelMachine, op: Op) -> Tensor:
    source, index = machine.get(op)
    axis = op.integer("axis") + 1
    shapes = [kind.shape for kind in op.operand_types]
    if len(shapes) < 2:
        raise Unsupported("tt.gather as this Triton prints it")
    count = max(source.shape[0], index.shape[0])
    source = source.expand(count, *shapes[0])
    index = index.expand(count, *shapes[1]).long().clamp(0, source.shape[axis] - 1)
    return torch.gather(source, axis, index)


@operation("tt.assert", "tt.print", "llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier",
           "nvvm.barrier0", "nvvm.barrier")  # fmt: skip
def do_nothing(machine: KernelMachine, op: Op) -> None:
    """Ignore output, assumptions and barriers: programs run in step anyway."""
