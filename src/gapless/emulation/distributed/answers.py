"""What collectives give where the other ranks are not there.

Each other rank is taken to bring what this one brings: a sum is this rank's values times their number, a
gather that many copies, and of an exchange each rank sends the part that is meant for this one. What only
another rank has stays as it is (`broadcast`), or is made up where nothing is there (`recv`, `scatter`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gapless import trees

Tensor = torch.Tensor
_SUM, _AVG, _PRODUCT, _BXOR = 0, 1, 2, 7
_NAMED = {"sum": _SUM, "avg": _AVG, "product": _PRODUCT, "bxor": _BXOR}
_SPREAD = 0.02
"""Standard deviation of values that only another rank would know."""

expected: deque[Tensor] = deque()
"""What the next messages of another rank hold, where that is known."""

Answer = Callable[[dict[str, Any], int, int], Any]
"""Fills the outputs among an operator's arguments, for so many ranks and this one; or gives the results."""


def answer(name: str, values: dict[str, Any], size: int, rank: int) -> Any:
    """What operator `name` of c10d, or a functional one, gives; in place where it has tensors to fill."""
    with torch.no_grad():
        return ANSWERS[name](values, size, rank)


# -- parts -------------------------------------------------------------------------------------------


def reduce(tensor: Tensor, operation: int, size: int) -> None:
    """`tensor` is what `size` ranks alike have reduced it to."""
    if operation == _SUM:
        tensor.data.mul_(size)
    elif operation == _PRODUCT:
        tensor.data.pow_(size)
    elif operation == _BXOR and size % 2 == 0:
        tensor.data.zero_()


def operation_of(given: Any) -> int:
    """Number of a reduce operation: by name, or as C++ hands it on."""
    if isinstance(given, str):
        return _NAMED.get(given.lower(), -1)
    try:
        return int(given.op())
    except (AttributeError, RuntimeError):  # an older torch keeps it to itself
        return _SUM


def receive(tensor: Tensor) -> None:
    """`tensor` gets what another rank sends: what is `expected`, or what is made up."""
    if expected:
        tensor.data.copy_(expected.popleft())
    else:
        make_up(tensor)


def make_up(tensor: Tensor) -> None:
    """Values that nobody here knows: small numbers, always the same; zeros of integers."""
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(0)
        tensor.data.normal_(0, _SPREAD, generator=generator)
    else:
        tensor.data.zero_()


def fill(target: Tensor, source: Tensor) -> None:
    """`target` gets the numbers of `source`, again and again where it is larger."""
    wanted, given = target.numel(), source.numel()
    if not wanted:
        return
    if not given:
        make_up(target)
    elif wanted == given:
        target.data.copy_(source.reshape(target.shape))
    elif wanted % given == 0 and target.is_contiguous():
        target.data.view(-1, given).copy_(source.reshape(1, -1))
    else:
        flat = source.reshape(-1).repeat(-(-wanted // given))[:wanted]
        target.data.copy_(flat.view(target.shape))


def repeat(target: Tensor, source: Tensor, size: int) -> None:
    """`target` gets `size` copies of `source`, which may be one of the parts."""
    if target.numel() != size * source.numel():
        raise ValueError("output tensor size must be equal to world_size times input tensor size")
    rows, row = target.data.view(size, -1), source.reshape(1, -1)
    if source.untyped_storage()._cdata != target.untyped_storage()._cdata:
        rows.copy_(row)
        return
    own = (source.storage_offset() - target.storage_offset()) // max(source.numel(), 1)
    rows[:own].copy_(row)
    rows[own + 1 :].copy_(row)


def own_part(target: Tensor, source: Tensor, size: int, rank: int, operation: int) -> None:
    """`target` gets this rank's part of what the ranks have reduced."""
    if source.numel() != size * target.numel():
        raise ValueError("input tensor must be the same size as output size times world size")
    target.data.copy_(source.reshape(size, -1)[rank].view(target.shape))
    reduce(target, operation, size)


def exchange(
    target: Tensor, source: Tensor, outward: Sequence[int], inward: Sequence[int], size: int, rank: int
) -> None:
    """Each rank sends its part for this one, `outward` being the sizes of those parts in `target`.

    Where this one's own part for itself is empty, as in a ring, the others send what they send to anybody.
    """
    if inward:
        first = sum(inward[:rank])
        mine = source[first : first + inward[rank]]
    else:
        mine = source.reshape(size, -1)[rank]
    if not outward or set(outward) == {len(mine)}:
        fill(target, mine)
        return
    for part in target.split(list(outward)):
        fill(part, mine if mine.numel() else source)


# -- operators of c10d, which fill their outputs -------------------------------------------------------


def _all_reduce(values: dict[str, Any], size: int, rank: int) -> None:
    operation = operation_of(values["reduce_op"])
    for tensor in values["tensors"]:
        reduce(tensor, operation, size)


def _reduce(values: dict[str, Any], size: int, rank: int) -> None:
    if rank == values["root_rank"]:
        _all_reduce(values, size, rank)


def _broadcast(values: dict[str, Any], size: int, rank: int) -> None:
    """Of another rank's values nothing is known: these are as good."""
    if rank != values["root_rank"] and expected:
        receive(values["tensors"][0])


def _all_gather(values: dict[str, Any], size: int, rank: int) -> None:
    for parts, own in zip(values["output_tensors"], values["input_tensors"], strict=True):
        for part in parts:
            fill(part, own)


def _all_gather_lists(values: dict[str, Any], size: int, rank: int) -> None:
    for parts in values["output_lists"]:
        for part, own in zip(parts, values["input_list"], strict=True):
            fill(part, own)


def _all_gather_base(values: dict[str, Any], size: int, rank: int) -> None:
    repeat(values["output_tensor"], values["input_tensor"], size)


def _all_gather_several(values: dict[str, Any], size: int, rank: int) -> None:
    for target, source in zip(values["outputs"], values["inputs"], strict=True):
        repeat(target, source, size)


def _reduce_scatter(values: dict[str, Any], size: int, rank: int) -> None:
    operation = operation_of(values["reduce_op"])
    for target, parts in zip(values["output_tensors"], values["input_tensors"], strict=True):
        fill(target, parts[rank])
        reduce(target, operation, size)


def _reduce_scatter_base(values: dict[str, Any], size: int, rank: int) -> None:
    operation = operation_of(values["reduce_op"])
    own_part(values["output_tensor"], values["input_tensor"], size, rank, operation)


def _reduce_scatter_several(values: dict[str, Any], size: int, rank: int) -> None:
    operation = operation_of(values["reduce_op"])
    for target, source in zip(values["outputs"], values["inputs"], strict=True):
        own_part(target, source, size, rank, operation)


def _gather(values: dict[str, Any], size: int, rank: int) -> None:
    if rank == values["root_rank"]:
        _all_gather(values, size, rank)


def _gather_base(values: dict[str, Any], size: int, rank: int) -> None:
    if rank == values["root_rank"]:
        _all_gather_base(values, size, rank)


def _scatter(values: dict[str, Any], size: int, rank: int) -> None:
    for number, target in enumerate(values["output_tensors"]):
        if rank == values["root_rank"]:
            fill(target, values["input_tensors"][number][rank])
        else:
            receive(target)


def _all_to_all(values: dict[str, Any], size: int, rank: int) -> None:
    inputs = values["input_tensors"]
    for target in values["output_tensors"]:
        own = inputs[rank]
        fill(target, own if own.numel() else next((one for one in inputs if one.numel()), own))


def _all_to_all_base(values: dict[str, Any], size: int, rank: int) -> None:
    splits = values["output_split_sizes"], values["input_split_sizes"]
    exchange(values["output"], values["input"], *splits, size, rank)


def _received(values: dict[str, Any], size: int, rank: int) -> None:
    for tensor in values["tensors"]:
        receive(tensor)


def _nothing(values: dict[str, Any], size: int, rank: int) -> None:
    """It is sent, or all have come."""


# -- functional ones, which give their results -----------------------------------------------------------


def _each(values: dict[str, Any], make: Callable[[Tensor], Tensor]) -> Any:
    given = values["inputs"] if "inputs" in values else values["input"]
    return [make(one) for one in given] if isinstance(given, (list, tuple)) else make(given)


def _reduced(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])

    def make(one: Tensor) -> Tensor:
        out = one.clone(memory_format=torch.contiguous_format)
        reduce(out, operation, size)
        return out

    return _each(values, make)


def _reduced_in_place(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])
    given = values["inputs"] if "inputs" in values else values["input"]
    for one in trees.tensors(given):
        reduce(one, operation, size)
    return given


def _gathered(values: dict[str, Any], size: int, rank: int) -> Any:
    group = int(values["group_size"])
    return _each(values, lambda one: one.repeat(group, *(1 for _ in one.shape[1:])))


def _gathered_out(values: dict[str, Any], size: int, rank: int) -> Tensor:
    out: Tensor = values["out"]
    repeat(out, values["input"], size)
    return out


def _scattered(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])

    def make(one: Tensor) -> Tensor:
        out = one.chunk(size)[rank].clone(memory_format=torch.contiguous_format)
        reduce(out, operation, size)
        return out

    return _each(values, make)


def _scattered_out(values: dict[str, Any], size: int, rank: int) -> Tensor:
    out: Tensor = values["out"]
    own_part(out, values["input"], size, rank, operation_of(values["reduce_op"]))
    return out


def _exchanged(values: dict[str, Any], size: int, rank: int) -> Tensor:
    source: Tensor = values["input"]
    outward = [int(one) for one in values["output_split_sizes"]]
    inward = [int(one) for one in values["input_split_sizes"]]
    out = source.new_empty((sum(outward) if outward else source.shape[0], *source.shape[1:]))
    exchange(out, source, outward, inward, size, rank)
    return out


def _moved_shards(values: dict[str, Any], size: int, rank: int) -> Tensor:
    """DTensor's change of the sharded dimension."""
    own = values["input"].chunk(size, values["shard_dim"])[rank]
    return torch.cat([own] * size, values["gather_dim"])


def _copied(values: dict[str, Any], size: int, rank: int) -> Tensor:
    given: Tensor = values["input"]
    return given.clone()


def _same(values: dict[str, Any], size: int, rank: int) -> Any:
    return values["input"] if "input" in values else values["tensor"]


def _received_one(values: dict[str, Any], size: int, rank: int) -> Tensor:
    make_up(values["tensor"])
    tensor: Tensor = values["tensor"]
    return tensor


def _batch(values: dict[str, Any], size: int, rank: int) -> Any:
    for kind, tensor in zip(values["op_list"], values["tensors"], strict=True):
        if "recv" in kind:
            make_up(tensor)
    return values["tensors"]


ANSWERS: dict[str, Answer] = {
    "c10d::allreduce_": _all_reduce,
    "c10d::allreduce_coalesced_": _all_reduce,
    "c10d::broadcast_": _broadcast,
    "c10d::reduce_": _reduce,
    "c10d::allgather_": _all_gather,
    "c10d::_allgather_base_": _all_gather_base,
    "c10d::allgather_coalesced_": _all_gather_lists,
    "c10d::allgather_into_tensor_coalesced_": _all_gather_several,
    "c10d::reduce_scatter_": _reduce_scatter,
    "c10d::_reduce_scatter_base_": _reduce_scatter_base,
    "c10d::reduce_scatter_tensor_coalesced_": _reduce_scatter_several,
    "c10d::gather_": _gather,
    "c10d::gather_into_tensor_": _gather_base,
    "c10d::scatter_": _scatter,
    "c10d::alltoall_": _all_to_all,
    "c10d::alltoall_base_": _all_to_all_base,
    "c10d::send": _nothing,
    "c10d::recv_": _received,
    "c10d::recv_any_source_": _received,
    "c10d::barrier": _nothing,
    "c10d::monitored_barrier_": _nothing,
    "_c10d_functional::all_reduce": _reduced,
    "_c10d_functional::all_reduce_": _reduced_in_place,
    "_c10d_functional::all_reduce_coalesced": _reduced,
    "_c10d_functional::all_reduce_coalesced_": _reduced_in_place,
    "_c10d_functional::all_gather_into_tensor": _gathered,
    "_c10d_functional::all_gather_into_tensor_out": _gathered_out,
    "_c10d_functional::all_gather_into_tensor_coalesced": _gathered,
    "_c10d_functional::reduce_scatter_tensor": _scattered,
    "_c10d_functional::reduce_scatter_tensor_out": _scattered_out,
    "_c10d_functional::reduce_scatter_tensor_coalesced": _scattered,
    "_c10d_functional::all_to_all_single": _exchanged,
    "_c10d_functional::broadcast": _copied,
    "_c10d_functional::broadcast_": _same,
    "_c10d_functional::isend": _same,
    "_c10d_functional::irecv": _received_one,
    "_c10d_functional::batch_p2p_ops": _batch,
    "_dtensor::shard_dim_alltoall": _moved_shards,
}
