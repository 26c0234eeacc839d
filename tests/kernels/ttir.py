"""TTIR written for tests: a kernel of one operation on blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gapless.kernels.evaluate import Kernel, evaluate

ELEMENTS = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


def element(tensor: torch.Tensor) -> str:
    """The element type of a tensor in TTIR."""
    return ELEMENTS[tensor.dtype]


def block(shape: Sequence[int], of: str) -> str:
    """The type of a block."""
    return f"tensor<{'x'.join(map(str, shape))}x{of}>" if shape else of


def addresses(name: str, base: str, shape: Sequence[int], of: str) -> list[str]:
    """Lines that make `name` pointers to a contiguous block of that shape behind the pointer `base`."""
    lines, total = [], ""
    whole = block(shape, "i32")
    step = 1
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        here = f"{name}_r{axis}"
        lines.append(f"{here} = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>")
        rank = [size]
        for other in range(len(shape)):
            if other == axis:
                continue
            at = 0 if other < axis else len(rank)
            before = list(rank)
            rank.insert(at, 1)
            lines.append(
                f"{here}e{other} = tt.expand_dims {here} {{axis = {at} : i32}} : "
                f"{block(before, 'i32')} -> {block(rank, 'i32')}"
            )
            here = f"{here}e{other}"
        lines.append(f"{here}c = arith.constant dense<{step}> : {block(rank, 'i32')}")
        lines.append(f"{here}m = arith.muli {here}, {here}c : {block(rank, 'i32')}")
        lines.append(f"{here}b = tt.broadcast {here}m : {block(rank, 'i32')} -> {whole}")
        if total:
            lines.append(f"{here}s = arith.addi {total}, {here}b : {whole}")
        total = f"{here}s" if total else f"{here}b"
        step *= size
    pointers = block(shape, f"!tt.ptr<{of}>")
    lines.append(f"{name}_p = tt.splat {base} : !tt.ptr<{of}> -> {pointers}")
    lines.append(f"{name} = tt.addptr {name}_p, {total} : {pointers}, {whole}")
    return lines


def kernel(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], body: Sequence[str]) -> str:
    """TTIR that loads `inputs` as ``%x0, %x1, …``, runs `body`, and stores ``%y0, …`` to `outputs`."""
    names = [f"%a{n}: !tt.ptr<{_stored(tensor)}>" for n, tensor in enumerate((*inputs, *outputs))]
    lines = []
    for n, tensor in enumerate(inputs):
        of, shape = _stored(tensor), tuple(tensor.shape)
        lines += addresses(f"%in{n}", f"%a{n}", shape, of)
        loaded = f"%x{n}" if tensor.dtype is not torch.bool else f"%x{n}b"
        lines.append(f"{loaded} = tt.load %in{n} : {block(shape, f'!tt.ptr<{of}>')}")
        if tensor.dtype is torch.bool:
            lines.append(f"%x{n} = arith.trunci {loaded} : {block(shape, 'i8')} to {block(shape, 'i1')}")
    lines += body
    for n, tensor in enumerate(outputs):
        of, shape, at = _stored(tensor), tuple(tensor.shape), n + len(inputs)
        lines += addresses(f"%out{n}", f"%a{at}", shape, of)
        value = f"%y{n}"
        if tensor.dtype is torch.bool:
            lines.append(f"%y{n}w = arith.extui {value} : {block(shape, 'i1')} to {block(shape, 'i8')}")
            value = f"%y{n}w"
        lines.append(f"tt.store %out{n}, {value} : {block(shape, f'!tt.ptr<{of}>')}")
    inner = "\n".join(f"    {line}" for line in lines)
    return (
        f"module {{\n  tt.func public @k({', '.join(names)}) attributes {{noinline = false}} {{\n"
        f"{inner}\n    tt.return\n  }}\n}}\n"
    )


def _stored(tensor: torch.Tensor) -> str:
    return "i8" if tensor.dtype is torch.bool else element(tensor)


def run(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], body: Sequence[str]
) -> Sequence[torch.Tensor]:
    """What `body` makes of `inputs`, in `outputs`."""
    evaluate(Kernel(kernel(inputs, outputs, body)), (*inputs, *outputs), (1,))
    return outputs
