"""Handlers for c10d's operators: what may travel in a group, what the host waits for, what gloo lacks.

NCCL's collectives are launched like kernels: the host goes on, and ``Work.wait`` makes a stream wait, not
the host. Only a barrier stops it: `WorkNCCL::wait` ends in a synchronization of the current stream
(`torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`). Gloo's collectives on device tensors pass through
the host, so there the host waits each time (`ProcessGroupGlooCuda.cpp`).

Collectives are over when they return here. What NCCL orders by streams is then ordered by itself, and
what hangs on a future (`Future.then` in DDP's hooks) runs in the calling thread, as it does with NCCL,
and not in gloo's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gapless import torch_internals, trees
from gapless.emulation.dispatch.operators import OperatorMode, handles
from gapless.emulation.distributed.answers import answer
from gapless.emulation.distributed.nccl import backends, finished_work, no_backend, stops_later
from gapless.emulation.distributed.traffic import awaited, made, record, whose
from gapless.emulation.distributed.world import current
from gapless.emulation.races import collectives
from gapless.emulation.support.local import local
from gapless.emulation.support.places import ORPHAN
from gapless.torch_internals import (
    ProcessGroup,
    PythonCallbackWork,
    Work,
    resolve_process_group,
    work_from_future,
)

Tensor = torch.Tensor

_COLLECTIVES = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "gather_into_tensor_", "scatter_", "alltoall_",
    "alltoall_base_",
)  # fmt: skip
_FUNCTIONAL = (
    "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "all_gather_into_tensor",
    "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor",
    "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced", "all_to_all_single", "broadcast",
    "broadcast_", "isend", "irecv", "batch_p2p_ops",
)  # fmt: skip


class Call:
    """One call of an operator of c10d."""

    def __init__(self, mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.mode = mode
        self.func = func
        self.name: str = func._schema.name.removeprefix("c10d::")
        arguments = func._schema.arguments
        names = [argument.name for argument in arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        defaults = {one.name: one.default_value for one in arguments if one.has_default_value()}
        self.values: dict[str, Any] = {**defaults, **given}
        self.group = ProcessGroup.unbox(self.values["process_group"])
        self.backends = backends(self.group)
        self.alone = is_alone(self.backends)

    @property
    def tensors(self) -> Iterator[Tensor]:
        return trees.tensors(self.values)

    def run(self, **changed: Any) -> Any:
        """The operator on CPU values, with some arguments `changed`."""
        return self.func(**{**self.values, **changed})


def admit(mode: OperatorMode, tensors: Any, transports: dict[str, str]) -> int:
    """Device index of a collective's tensors; -1 where none is on the device.

    Tensors that C++ has made without saying where (DDP's reducer) follow the others, or the group.

    Raises:
        RuntimeError: a host tensor in a group of NCCL alone, in c10d's words.
    """
    core = mode.core
    tensors = list(tensors)
    states = [core.placement.state_of(tensor) for tensor in tensors]
    index = max([state for state in states if state >= 0], default=-1)
    only_device = bool(transports) and "cpu" not in transports
    if only_device and any(state < 0 and state != ORPHAN for state in states):
        raise no_backend()
    if only_device and index < 0:
        index = core.current_device()
    if index >= 0:
        for tensor, state in zip(tensors, states, strict=True):
            if state == ORPHAN:
                core.placement.put(tensor, index)
    return index


def is_alone(transports: dict[str, str]) -> bool:
    """Whether the other ranks of a group with these backends are not there."""
    return current() is not None or transports.get("cuda") == "fake"


def finish(out: Any) -> Any:
    """`out`, once the work in it is done."""
    work = out[-1] if isinstance(out, (list, tuple)) else out
    Work.unbox(work).wait()
    return out


def finish_for_good(out: Any) -> Any:
    """Like `finish`, for works of gloo that copy their result each time they are waited for."""
    done = finished_work().boxed()
    return (*finish(out)[:-1], done) if isinstance(out, (list, tuple)) else finish(out) and done


def _alone(call: Call) -> Any:
    """What the collective gives where the other ranks are not there."""
    values, group = call.values, call.group
    answered(call.mode, call.func._schema.name, values, group)
    given = values[call.func._schema.arguments[0].name]
    work = _delivered(list(trees.tensors(given))).boxed()
    return work if len(call.func._schema.returns) == 1 else (given, work)


def answered(mode: OperatorMode, name: str, values: dict[str, Any], group: Any) -> Any:
    """`answer`, in a run without values by way of `mode`, which knows what is known of them."""
    if mode.core.values is None:
        return answer(name, values, group.size(), group.rank())
    local.quiet += 1  # what is copied and reduced here goes through no kernel of its own
    try:
        with mode:
            return answer(name, values, group.size(), group.rank())
    finally:
        local.quiet -= 1


def _delivered(tensors: list[Tensor]) -> Any:
    """A work that is over and has these results: DDP takes the gradients from it."""
    done: Any = torch.futures.Future()
    done.set_result(tensors)
    return work_from_future(done)


@handles(*(f"c10d::{name}" for name in _COLLECTIVES))
def _collective(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = Call(mode, func, args, kwargs)
    index = admit(mode, call.tensors, call.backends)
    if index >= 0 and call.backends.get("cuda") == "gloo":
        mode.core.wait(f"c10d::{call.name}", "values", detail="gloo")
    number = record(mode.core, call.name, call.values, call.group, index)
    return _racing(call, _done(call), index, number)


def _done(call: Call) -> Any:
    if call.alone:
        return _alone(call)
    if call.backends.get("cuda") == "nccl":
        special = _NCCL_ONLY.get(call.name)
        if special is not None:
            return special(call)
    return _ending(call)(call.run())


def _racing(call: Call, out: Any, index: int, number: int) -> Any:
    """`out`, with a work that tells who waits for it, where NCCL's stream would do the work.

    `number` is what the programme calls the collective.
    """
    races = call.mode.core.races
    if index < 0:
        if races.busy:
            reads, writes = collectives.reads_and_writes(call.name, call.values, call.group.rank())
            for writing, tensors in ((False, reads), (True, writes)):
                for one in tensors:
                    races.check_host_access(one, writing, f"c10d::{call.name}")
        return out
    if call.backends.get("cuda") == "gloo":
        return out
    heard = partial(awaited, call.mode.core, number)
    told = partial(collectives.track_collective, races, call.name, call.values, call.group, index, heard)
    return (*out[:-1], told(out[-1])) if isinstance(out, (list, tuple)) else told(out)


def _ending(call: Call) -> Callable[[Any], Any]:
    return finish_for_good if "reduce_scatter" in call.name else finish


@handles("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
def _point_to_point(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = Call(mode, func, args, kwargs)
    index = admit(mode, call.tensors, call.backends)
    if index >= 0 and call.backends.get("cuda") == "gloo":
        mode.core.wait(f"c10d::{call.name}", "values", detail="gloo")
    if index >= 0 and call.name == "recv_any_source_" and call.backends.get("cuda") == "nccl":
        raise RuntimeError("Backend nccl does not support recvAnysource")
    number = record(mode.core, call.name, call.values, call.group, index)
    return _racing(call, _alone(call) if call.alone else call.run(), index, number)


@handles("c10d::barrier")
def _barrier(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = Call(mode, func, args, kwargs)
    record(mode.core, call.name, call.values, call.group, mode.core.device_of(call.values["tensor"]))
    # c10d chooses the backend by a tensor it makes; in a group that carries the host, too, that one is there.
    if call.backends.get("cuda") != "nccl" or mode.core.device_of(call.values["tensor"]) < 0:
        return call.run()
    # An asynchronous barrier waits where the script waits for it, or leaves that to the stream.
    if call.values.get("async_op"):
        if not stops_later(call.group):
            return finish(call.run())
        if PythonCallbackWork is not None:
            return _when_waited_for(mode, Work.unbox(call.run()))
        mode.core.note(torch_internals.off("PythonCallbackWork"))
    mode.core.wait("cudaStreamSynchronize", "explicit", call="torch.distributed.barrier")
    return finish(call.run())


def _when_waited_for(mode: OperatorMode, work: Any) -> Any:
    def wait(timeout: Any) -> bool:
        mode.core.wait("cudaStreamSynchronize", "explicit", call="torch.distributed.barrier")
        work.wait()
        return True

    return PythonCallbackWork(wait).boxed()


# -- what NCCL takes and gloo does not -------------------------------------------------------------


def _flat(value: Any) -> Any:
    """`value` with its tensors in one dimension: NCCL counts elements where gloo compares shapes."""
    if isinstance(value, Tensor):
        return value.view(-1) if value.is_contiguous() else value
    return [_flat(item) for item in value]


def _into_tensor(*names: str) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        out = _ending(call)(call.run(**{name: _flat(call.values[name]) for name in names}))
        return (call.values[names[0]], out[-1]) if isinstance(out, (list, tuple)) else out

    return run


def _gathered(call: Call) -> Any:
    """NCCL gathers tensors of different sizes by one broadcast from each rank."""
    outputs, inputs = call.values["output_tensors"], call.values["input_tensors"]
    if len({tensor.shape for tensor in outputs[0]}) == 1 and outputs[0][0].shape == inputs[0].shape:
        return finish(call.run())
    if len({tensor.numel() for tensor in outputs[0]}) == 1 and all(
        part.is_contiguous() for part in outputs[0]
    ):
        return outputs, finish(call.run(output_tensors=_flat(outputs), input_tensors=_flat(inputs)))[-1]
    options = dist.BroadcastOptions()
    for rank, part in enumerate(outputs[0]):
        if rank == call.group.rank():
            part.copy_(inputs[0])
        options.rootRank, options.rootTensor = rank, 0
        call.group.broadcast([part], options).wait()
    return outputs, finished_work().boxed()


def _gathered_into_one(call: Call) -> Any:
    """Gloo has a list where NCCL has one tensor for all that is gathered, which only the root gives."""
    values, group = call.values, call.group
    options = dist.GatherOptions()
    options.rootRank = values["root_rank"]
    parts = []
    if group.rank() == options.rootRank:
        parts = [[*_flat(values["output_tensor"]).chunk(group.size())]]
    group.gather(parts, [_flat(values["input_tensor"])], options).wait()
    return values["output_tensor"], finished_work().boxed()


_NCCL_ONLY: dict[str, Callable[[Call], Any]] = {
    "allgather_": _gathered,
    "gather_into_tensor_": _gathered_into_one,
    "_allgather_base_": _into_tensor("output_tensor", "input_tensor"),
    "allgather_into_tensor_coalesced_": _into_tensor("outputs", "inputs"),
    "_reduce_scatter_base_": _into_tensor("output_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": _into_tensor("outputs", "inputs"),
}


# -- functional collectives ------------------------------------------------------------------------


@handles(*(f"_c10d_functional::{name}" for name in _FUNCTIONAL), "_dtensor::shard_dim_alltoall")
def _functional(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    group = values["group_name"]
    group = resolve_process_group(group) if isinstance(group, str) else group
    transports = backends(group)
    index = admit(mode, trees.tensors(values), transports)
    if index >= 0 and transports.get("cuda") == "gloo":
        mode.core.wait(func._schema.name, "values", detail="gloo")
    number = record(mode.core, func._schema.name.split("::")[1], values, group, index)
    alone = is_alone(transports)
    out = answered(mode, func._schema.name, values, group) if alone else func(*args, **kwargs)
    if index >= 0:
        mode.put(out, index, args)
        made(mode.core, number, out)
        if mode.core.races.full:
            mode.core.races.record_launch(func._schema.name, trees.tensors(values), trees.tensors(out), index)
    return out


@handles("_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors")
def _wait_tensor(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A stream waits, not the host."""
    for one in trees.tensors(args[0]):
        awaited(mode.core, whose(mode.core, one))
    return func(*args, **kwargs)
