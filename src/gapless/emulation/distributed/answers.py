"""Results of collectives without the other ranks.

Each other rank is assumed to contribute what this one does: a sum is this rank's values times the number of
ranks, a gather that many copies, and in an exchange each rank sends the part meant for this one. Data that
only another rank has stays unchanged (`broadcast`), or is made up if there is none (`recv`, `scatter`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gapless import trees

Tensor = torch.Tensor
_SUM, _AVG, _PRODUCT, _BXOR = 0, 1, 2, 7
_OPERATIONS = {"sum": _SUM, "avg": _AVG, "product": _PRODUCT, "bxor": _BXOR}
_SPREAD = 0.02
"""Standard deviation of made-up values."""

expected: deque[Tensor] = deque()
"""The next messages of another rank, if known."""

Answer = Callable[[dict[str, Any], int, int], Any]
"""Fills the outputs among an operator's arguments, for a number of ranks and this rank; or returns
results."""


def answer(name: str, values: dict[str, Any], size: int, rank: int) -> Any:
    """Compute the result of operator `name` of c10d or its functional API; in place if it has output
    tensors."""
    with torch.no_grad():
        return ANSWERS[name](values, size, rank)


# -- parts -------------------------------------------------------------------------------------------


def reduce(tensor: Tensor, operation: int, size: int) -> None:
    """Reduce `tensor` in place as if `size` ranks had equal values."""
    if operation == _SUM:
        tensor.data.mul_(size)
    elif operation == _PRODUCT:
        tensor.data.pow_(size)
    elif operation == _BXOR and size % 2 == 0:
        tensor.data.zero_()


def operation_of(operation: Any) -> int:
    """Return the number of a reduce operation, from its name or C++ object."""
    if isinstance(operation, str):
        return _OPERATIONS.get(operation.lower(), -1)
    try:
        return int(operation.op())
    except (AttributeError, RuntimeError):  # an older torch does not expose it
        return _SUM


def receive(tensor: Tensor) -> None:
    """Fill `tensor` with the next of `expected`, else with made-up values."""
    if expected:
        tensor.data.copy_(expected.popleft())
    else:
        make_up(tensor)


def make_up(tensor: Tensor) -> None:
    """Fill `tensor` with small numbers, always the same; integers with zeros."""
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(0)
        tensor.data.normal_(0, _SPREAD, generator=generator)
    else:
        tensor.data.zero_()


def fill(target: Tensor, source: Tensor) -> None:
    """Copy `source` into `target`, repeated if `target` is larger."""
    target_length, length = target.numel(), source.numel()
    if not target_length:
        return
    if not length:
        make_up(target)
    elif target_length == length:
        target.data.copy_(source.reshape(target.shape))
    elif target_length % length == 0 and target.is_contiguous():
        target.data.view(-1, length).copy_(source.reshape(1, -1))
    else:
        flat = source.reshape(-1).repeat(-(-target_length // length))[:target_length]
        target.data.copy_(flat.view(target.shape))


def repeat(target: Tensor, source: Tensor, size: int) -> None:
    """Fill `target` with `size` copies of `source`, which may be one of its parts."""
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
    """Fill `target` with this rank's part of the reduced `source`."""
    if source.numel() != size * target.numel():
        raise ValueError("input tensor must be the same size as output size times world size")
    target.data.copy_(source.reshape(size, -1)[rank].view(target.shape))
    reduce(target, operation, size)


def exchange(
    target: Tensor, source: Tensor, outward: Sequence[int], inward: Sequence[int], size: int, rank: int
) -> None:
    """Fill `target` with each rank's part for this one; `outward` are the sizes of those parts.

    If this rank's part for itself is empty, as in a ring, the others send what they send to any rank.
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
    """Receive an expected message; the values of another rank are otherwise unknown, so ours stay."""
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
        fill(target, own if own.numel() else next((tensor for tensor in inputs if tensor.numel()), own))


def _all_to_all_base(values: dict[str, Any], size: int, rank: int) -> None:
    splits = values["output_split_sizes"], values["input_split_sizes"]
    exchange(values["output"], values["input"], *splits, size, rank)


def _receive(values: dict[str, Any], size: int, rank: int) -> None:
    for tensor in values["tensors"]:
        receive(tensor)


def _do_nothing(values: dict[str, Any], size: int, rank: int) -> None:
    """Do nothing: the message is sent, or all ranks have come."""


# -- functional ones, which give their results -----------------------------------------------------------


def _map_inputs(values: dict[str, Any], make: Callable[[Tensor], Tensor]) -> Any:
    """Apply `make` to the input tensor, or to each of a list."""
    inputs = values["inputs"] if "inputs" in values else values["input"]
    return [make(tensor) for tensor in inputs] if isinstance(inputs, (list, tuple)) else make(inputs)


def _functional_reduce(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])

    def make(tensor: Tensor) -> Tensor:
        out = tensor.clone(memory_format=torch.contiguous_format)
        reduce(out, operation, size)
        return out

    return _map_inputs(values, make)


def _functional_reduce_in_place(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])
    inputs = values["inputs"] if "inputs" in values else values["input"]
    for tensor in trees.tensors(inputs):
        reduce(tensor, operation, size)
    return inputs


def _functional_all_gather(values: dict[str, Any], size: int, rank: int) -> Any:
    size_of_group = int(values["group_size"])
    return _map_inputs(values, lambda tensor: tensor.repeat(size_of_group, *(1 for _ in tensor.shape[1:])))


def _functional_all_gather_out(values: dict[str, Any], size: int, rank: int) -> Tensor:
    out: Tensor = values["out"]
    repeat(out, values["input"], size)
    return out


def _functional_reduce_scatter(values: dict[str, Any], size: int, rank: int) -> Any:
    operation = operation_of(values["reduce_op"])

    def make(tensor: Tensor) -> Tensor:
        out = tensor.chunk(size)[rank].clone(memory_format=torch.contiguous_format)
        reduce(out, operation, size)
        return out

    return _map_inputs(values, make)


def _functional_reduce_scatter_out(values: dict[str, Any], size: int, rank: int) -> Tensor:
    out: Tensor = values["out"]
    own_part(out, values["input"], size, rank, operation_of(values["reduce_op"]))
    return out


def _functional_all_to_all(values: dict[str, Any], size: int, rank: int) -> Tensor:
    source: Tensor = values["input"]
    outward = [int(length) for length in values["output_split_sizes"]]
    inward = [int(length) for length in values["input_split_sizes"]]
    out = source.new_empty((sum(outward) if outward else source.shape[0], *source.shape[1:]))
    exchange(out, source, outward, inward, size, rank)
    return out


def _shard_dim_all_to_all(values: dict[str, Any], size: int, rank: int) -> Tensor:
    """Change the sharded dimension, as DTensor does."""
    own = values["input"].chunk(size, values["shard_dim"])[rank]
    return torch.cat([own] * size, values["gather_dim"])


def _functional_broadcast(values: dict[str, Any], size: int, rank: int) -> Tensor:
    source: Tensor = values["input"]
    return source.clone()


def _unchanged_input(values: dict[str, Any], size: int, rank: int) -> Any:
    """Return the input: nothing changes on this rank."""
    return values["input"] if "input" in values else values["tensor"]


def _functional_receive(values: dict[str, Any], size: int, rank: int) -> Tensor:
    """Fill the tensor with made-up values."""
    make_up(values["tensor"])
    tensor: Tensor = values["tensor"]
    return tensor


def _functional_batch(values: dict[str, Any], size: int, rank: int) -> Any:
    """Fill what a batch of point-to-point operations receives with made-up values."""
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
    "c10d::send": _do_nothing,
    "c10d::recv_": _receive,
    "c10d::recv_any_source_": _receive,
    "c10d::barrier": _do_nothing,
    "c10d::monitored_barrier_": _do_nothing,
    "_c10d_functional::all_reduce": _functional_reduce,
    "_c10d_functional::all_reduce_": _functional_reduce_in_place,
    "_c10d_functional::all_reduce_coalesced": _functional_reduce,
    "_c10d_functional::all_reduce_coalesced_": _functional_reduce_in_place,
    "_c10d_functional::all_gather_into_tensor": _functional_all_gather,
    "_c10d_functional::all_gather_into_tensor_out": _functional_all_gather_out,
    "_c10d_functional::all_gather_into_tensor_coalesced": _functional_all_gather,
    "_c10d_functional::reduce_scatter_tensor": _functional_reduce_scatter,
    "_c10d_functional::reduce_scatter_tensor_out": _functional_reduce_scatter_out,
    "_c10d_functional::reduce_scatter_tensor_coalesced": _functional_reduce_scatter,
    "_c10d_functional::all_to_all_single": _functional_all_to_all,
    "_c10d_functional::broadcast": _functional_broadcast,
    "_c10d_functional::broadcast_": _unchanged_input,
    "_c10d_functional::isend": _unchanged_input,
    "_c10d_functional::irecv": _functional_receive,
    "_c10d_functional::batch_p2p_ops": _functional_batch,
    "_dtensor::shard_dim_alltoall": _shard_dim_all_to_all,
}
