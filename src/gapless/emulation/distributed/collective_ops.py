"""Handlers for c10d's operators: which tensors a group accepts, where the host waits, what gloo lacks.

NCCL's collectives are launched like kernels: the host goes on, and ``Work.wait`` makes a stream wait, not the
host. Only a barrier stops it: `WorkNCCL::wait` ends in a synchronization of the current stream
(`torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`). Gloo's collectives on device tensors pass through the
host, so there the host waits each time (`ProcessGroupGlooCuda.cpp`).

Collectives are complete when they return here. Work that NCCL orders by streams is then in order, and
callbacks of a future (`Future.then` in DDP's hooks) run in the calling thread, as with NCCL and unlike gloo.
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
from gapless.emulation.distributed.traffic import collective_of, record, record_await, remember_results
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


class CollectiveCall:
    """A call of an operator of c10d."""

    def __init__(self, mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.mode = mode
        self.func = func
        self.name: str = func._schema.name.removeprefix("c10d::")
        arguments = func._schema.arguments
        names = [argument.name for argument in arguments]
        passed = {**dict(zip(names, args, strict=False)), **kwargs}
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self.values: dict[str, Any] = {**defaults, **passed}
        self.group = ProcessGroup.unbox(self.values["process_group"])
        self.backends = backends(self.group)
        self.alone = is_alone(self.backends)

    @property
    def tensors(self) -> Iterator[Tensor]:
        return trees.tensors(self.values)

    def run(self, **changed: Any) -> Any:
        """Run the operator on CPU values, with the arguments in `changed` replaced."""
        return self.func(**{**self.values, **changed})


def admit(mode: OperatorMode, tensors: Any, transports: dict[str, str]) -> int:
    """Return the device index of a collective's tensors; -1 if none is on the device.

    Tensors that C++ created without a known device (DDP's reducer) follow the others, or the group.

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
    """Whether a group with these backends runs without its other ranks."""
    return current() is not None or transports.get("cuda") == "fake"


def finish(out: Any) -> Any:
    """Wait for the work in `out`; return `out`."""
    work = out[-1] if isinstance(out, (list, tuple)) else out
    Work.unbox(work).wait()
    return out


def finish_for_good(out: Any) -> Any:
    """Like `finish`, for works of gloo that copy their result each time they are waited for."""
    done = finished_work().boxed()
    return (*finish(out)[:-1], done) if isinstance(out, (list, tuple)) else finish(out) and done


def _run_alone(call: CollectiveCall) -> Any:
    """Compute the collective's result without the other ranks."""
    values, group = call.values, call.group
    answer_within(call.mode, call.func._schema.name, values, group)
    first_argument = values[call.func._schema.arguments[0].name]
    work = _completed_work(list(trees.tensors(first_argument))).boxed()
    return work if len(call.func._schema.returns) == 1 else (first_argument, work)


def answer_within(mode: OperatorMode, name: str, values: dict[str, Any], group: Any) -> Any:
    """Call `answer`; in a run without values within `mode`, which tracks what is known of them."""
    if mode.core.values is None:
        return answer(name, values, group.size(), group.rank())
    local.quiet += 1  # copies and reductions here are not kernels of their own
    try:
        with mode:
            return answer(name, values, group.size(), group.rank())
    finally:
        local.quiet -= 1


def _completed_work(tensors: list[Tensor]) -> Any:
    """Return a completed work with these results, from which DDP takes the gradients."""
    done: Any = torch.futures.Future()
    done.set_result(tensors)
    return work_from_future(done)


@handles(*(f"c10d::{name}" for name in _COLLECTIVES))
def _collective(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a collective: check its tensors, record it, and return its outputs and work."""
    call = CollectiveCall(mode, func, args, kwargs)
    index = admit(mode, call.tensors, call.backends)
    if index >= 0 and call.backends.get("cuda") == "gloo":
        mode.core.wait(f"c10d::{call.name}", "values", detail="gloo")
    number = record(mode.core, call.name, call.values, call.group, index)
    return _observe_work(call, _run_collective(call), index, number)


def _run_collective(call: CollectiveCall) -> Any:
    """Run the collective alone, by its NCCL variant, or by gloo."""
    if call.alone:
        return _run_alone(call)
    if call.backends.get("cuda") == "nccl":
        special = _NCCL_VARIANTS.get(call.name)
        if special is not None:
            return special(call)
    return _finisher(call)(call.run())


def _observe_work(call: CollectiveCall, out: Any, index: int, number: int) -> Any:
    """Return `out` with a work that reports waits for it, where NCCL's stream would do the work.

    `number` is the programme's number of the collective.
    """
    races = call.mode.core.races
    if index < 0:
        if races.busy:
            reads, writes = collectives.reads_and_writes(call.name, call.values, call.group.rank())
            for writing, tensors in ((False, reads), (True, writes)):
                for tensor in tensors:
                    races.check_host_access(tensor, writing, f"c10d::{call.name}")
        return out
    if call.backends.get("cuda") == "gloo":
        return out
    on_wait = partial(record_await, call.mode.core, number)
    track = partial(collectives.track_collective, races, call.name, call.values, call.group, index, on_wait)
    return (*out[:-1], track(out[-1])) if isinstance(out, (list, tuple)) else track(out)


def _finisher(call: CollectiveCall) -> Callable[[Any], Any]:
    """Return the function that waits for the collective's work."""
    return finish_for_good if "reduce_scatter" in call.name else finish


@handles("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
def _point_to_point(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a send or receive."""
    call = CollectiveCall(mode, func, args, kwargs)
    index = admit(mode, call.tensors, call.backends)
    if index >= 0 and call.backends.get("cuda") == "gloo":
        mode.core.wait(f"c10d::{call.name}", "values", detail="gloo")
    if index >= 0 and call.name == "recv_any_source_" and call.backends.get("cuda") == "nccl":
        raise RuntimeError("Backend nccl does not support recvAnysource")
    number = record(mode.core, call.name, call.values, call.group, index)
    return _observe_work(call, _run_alone(call) if call.alone else call.run(), index, number)


@handles("c10d::barrier")
def _barrier(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a barrier, and record where the host waits."""
    call = CollectiveCall(mode, func, args, kwargs)
    record(mode.core, call.name, call.values, call.group, mode.core.device_of(call.values["tensor"]))
    # c10d chooses the backend by a tensor it creates; in a group that carries the host too it is on the host.
    if call.backends.get("cuda") != "nccl" or mode.core.device_of(call.values["tensor"]) < 0:
        return call.run()
    # After an asynchronous barrier the host waits in `Work.wait`, or only the stream does.
    if call.values.get("async_op"):
        if not stops_later(call.group):
            return finish(call.run())
        if PythonCallbackWork is not None:
            return _barrier_work(mode, Work.unbox(call.run()))
        mode.core.note(torch_internals.missing_note("PythonCallbackWork"))
    mode.core.wait("cudaStreamSynchronize", "explicit", call="torch.distributed.barrier")
    return finish(call.run())


def _barrier_work(mode: OperatorMode, work: Any) -> Any:
    """Return a work whose ``wait`` records that the host waits."""

    def wait(timeout: Any) -> bool:
        mode.core.wait("cudaStreamSynchronize", "explicit", call="torch.distributed.barrier")
        work.wait()
        return True

    return PythonCallbackWork(wait).boxed()


# -- accepted by NCCL but not by gloo --------------------------------------------------------------


def _flat(value: Any) -> Any:
    """Flatten the tensors of `value`: NCCL counts elements where gloo compares shapes."""
    if isinstance(value, Tensor):
        return value.view(-1) if value.is_contiguous() else value
    return [_flat(item) for item in value]


def _into_tensor(*names: str) -> Callable[[CollectiveCall], Any]:
    """Return a variant that flattens the arguments `names`."""

    def run(call: CollectiveCall) -> Any:
        out = _finisher(call)(call.run(**{name: _flat(call.values[name]) for name in names}))
        return (call.values[names[0]], out[-1]) if isinstance(out, (list, tuple)) else out

    return run


def _all_gather(call: CollectiveCall) -> Any:
    """Gather tensors of different sizes, as NCCL does, by one broadcast from each rank."""
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


def _gather_into_tensor(call: CollectiveCall) -> Any:
    """Gather into one tensor by gloo's gather into a list."""
    values, group = call.values, call.group
    options = dist.GatherOptions()
    options.rootRank = values["root_rank"]
    parts = []
    if group.rank() == options.rootRank:
        parts = [[*_flat(values["output_tensor"]).chunk(group.size())]]
    group.gather(parts, [_flat(values["input_tensor"])], options).wait()
    return values["output_tensor"], finished_work().boxed()


_NCCL_VARIANTS: dict[str, Callable[[CollectiveCall], Any]] = {
    "allgather_": _all_gather,
    "gather_into_tensor_": _gather_into_tensor,
    "_allgather_base_": _into_tensor("output_tensor", "input_tensor"),
    "allgather_into_tensor_coalesced_": _into_tensor("outputs", "inputs"),
    "_reduce_scatter_base_": _into_tensor("output_tensor", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": _into_tensor("outputs", "inputs"),
}


# -- functional collectives ------------------------------------------------------------------------


@handles(*(f"_c10d_functional::{name}" for name in _FUNCTIONAL), "_dtensor::shard_dim_alltoall")
def _functional(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a functional collective."""
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
    out = answer_within(mode, func._schema.name, values, group) if alone else func(*args, **kwargs)
    if index >= 0:
        mode.put(out, index, args)
        remember_results(mode.core, number, out)
        if mode.core.races.full:
            mode.core.races.record_launch(func._schema.name, trees.tensors(values), trees.tensors(out), index)
    return out


@handles("_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors")
def _wait_tensor(mode: OperatorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record that a stream waits; the host does not."""
    for tensor in trees.tensors(args[0]):
        record_await(mode.core, collective_of(mode.core, tensor))
    return func(*args, **kwargs)
