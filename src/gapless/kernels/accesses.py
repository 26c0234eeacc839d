"""Operations on pointers and tensor descriptors: compute addresses, read and write blocks."""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.atomics import atomic_update
from gapless.kernels.machine import KernelMachine, operation
from gapless.kernels.memory import Shape, load_block, store_block
from gapless.kernels.nodes import Op, ValueType, parse_type
from gapless.kernels.ramps import add_ramps, expand_ramp
from gapless.kernels.values import Descriptor, Pointer, Tensor, dtype_of, spread_over_block


@operation("tt.addptr")
def add_pointer(machine: KernelMachine, op: Op) -> Pointer:
    pointer, by = machine.raw(op)
    if pointer.memory is None:
        size = 8 if pointer.element.startswith("!") else dtype_of(pointer.element).itemsize
        by = expand_ramp(by).long() * size
    elif by.dtype is not torch.int64:
        by = by.to(torch.int64)
    return Pointer(pointer.element, pointer.memory, add_ramps(pointer.at, by))


@operation("tt.int_to_ptr")
def int_to_ptr(machine: KernelMachine, op: Op) -> Pointer:
    return Pointer(op.type.pointee, None, machine.get(op)[0].long())


@operation("tt.ptr_to_int")
def ptr_to_int(machine: KernelMachine, op: Op) -> Tensor:
    addresses: Tensor = machine.get(op)[0].addresses
    return addresses


@operation("tt.load")
def load(machine: KernelMachine, op: Op) -> Any:
    pointer, *rest = machine.get(op)
    mask, other = (*rest, None, None)[:2]
    return load_block(machine, pointer, mask, other, op.type.shape)


@operation("tt.store")
def store(machine: KernelMachine, op: Op) -> None:
    pointer, value, *rest = machine.get(op)
    store_block(machine, pointer, value, rest[0] if rest else None, op.type.shape)


# -- descriptors ---------------------------------------------------------------------------------------


@operation("tt.make_tensor_descriptor")
def make_descriptor(machine: KernelMachine, op: Op) -> Descriptor:
    base, *numbers = machine.get(op)
    rank = len(numbers) // 2
    padding = float("nan") if op.attributes.get("padding", "").split(" ")[0] in ("2", "nan") else 0.0
    sizes, strides = numbers[:rank], numbers[rank : 2 * rank]
    return Descriptor(
        base, tuple(number.long() for number in sizes), tuple(number.long() for number in strides), padding
    )


def block_type(kind: ValueType) -> ValueType:
    """Return the type of a descriptor's blocks: of ``!tt.tensordesc<tensor<8x16xf16>>``, ``8x16xf16``."""
    inner = kind.element[kind.element.index("<") + 1 : -1]
    return parse_type(inner if inner.startswith("tensor<") else f"tensor<{inner}>")


def descriptor_pointers(descriptor: Descriptor, at: list[Tensor], shape: Shape) -> tuple[Pointer, Tensor]:
    """Return pointers to the block that begins at `at`, and which of its elements lie in the tensor.

    One of `at` may be a block of indices (gathered rows).
    """
    rank = len(shape)
    offset: Any = descriptor.base.places.view(-1, *(1,) * rank)
    inside: Any = torch.ones((1,) * (rank + 1), dtype=torch.bool)
    for axis, (begin, size) in enumerate(zip(at, shape, strict=True)):
        sizes = [1] * (rank + 1)
        sizes[axis + 1] = size
        if begin.dim() > 1:
            index = begin.long().reshape(begin.shape[0], *sizes[1:])
        else:
            index = spread_over_block(begin, rank).long() + torch.arange(size).view(sizes)
        inside = inside & (index >= 0) & (index < spread_over_block(descriptor.sizes[axis], rank))
        step = index * spread_over_block(descriptor.strides[axis], rank)
        if descriptor.base.memory is None:
            step = step * dtype_of(descriptor.base.element).itemsize
        offset = offset + step
    return Pointer(descriptor.base.element, descriptor.base.memory, offset), inside


def load_descriptor_block(
    machine: KernelMachine, descriptor: Descriptor, at: list[Tensor], shape: Shape
) -> Tensor:
    """Return the whole block that begins at `at`, padded outside of the tensor."""
    pointer, inside = descriptor_pointers(descriptor, at, shape)
    fill = torch.tensor(descriptor.padding).to(dtype_of(pointer.element))
    out: Tensor = load_block(machine, pointer, inside, fill, shape)
    return out.expand(-1, *shape)


def _read_block(machine: KernelMachine, op: Op, shape: Shape) -> Tensor:
    descriptor, *at = machine.get(op)
    return load_descriptor_block(machine, descriptor, at, shape).reshape(-1, *op.result_types[0].shape)


@operation("tt.descriptor_load", "tt.experimental_descriptor_load")
def descriptor_load(machine: KernelMachine, op: Op) -> Tensor:
    return _read_block(machine, op, block_type(op.operand_types[0]).shape)


@operation("tt.descriptor_gather", "tt.experimental_descriptor_gather")
def descriptor_gather(machine: KernelMachine, op: Op) -> Tensor:
    return _read_block(machine, op, op.result_types[0].shape)


def _descriptor_write(machine: KernelMachine, op: Op) -> tuple[Pointer, Tensor, Tensor, Shape]:
    """Return where to write, which elements lie in the tensor, the values, and their shape."""
    first, *rest = machine.get(op)
    value = rest[-1]
    if first is value or not isinstance(first, Descriptor):
        raise TypeError(op.name)
    at = rest[:-1]
    shape = op.operand_types[-1].shape if at and at[0].dim() > 1 else block_type(op.operand_types[0]).shape
    pointer, inside = descriptor_pointers(first, at, shape)
    value = value.expand(-1, *op.operand_types[-1].shape).reshape(-1, *shape)
    return pointer, inside, value, shape


@operation("tt.descriptor_store", "tt.descriptor_scatter", "tt.experimental_descriptor_store")
def descriptor_store(machine: KernelMachine, op: Op) -> None:
    pointer, inside, value, shape = _descriptor_write(machine, op)
    store_block(machine, pointer, value, inside, shape)


@operation("tt.descriptor_reduce")
def descriptor_reduce(machine: KernelMachine, op: Op) -> None:
    pointer, inside, value, shape = _descriptor_write(machine, op)
    kind = op.text.split(",")[0].strip()
    floats = value.dtype.is_floating_point
    atomic_update(
        machine,
        "fadd" if kind == "add" and floats else kind,
        pointer,
        value,
        inside,
        shape,
        returns_old=False,
    )
