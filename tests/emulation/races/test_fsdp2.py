"""FSDP2's own waits: each that is taken out is a race, or named here as redundant, with the proof."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from emulation.races.removing import waits, without
from torch import nn

import gapless
from gapless.torch_internals import VERSION

pytestmark = pytest.mark.skipif(VERSION < (2, 13), reason=f"torch 2.{VERSION[1]} has another FSDP2")
of_its_waits = pytest.mark.skipif(
    VERSION > (2, 14), reason=f"torch 2.{VERSION[1]} waits elsewhere: these are the waits of 2.13 and 2.14"
)

MODULES = ("_fsdp_collectives", "_fsdp_param", "_fsdp_param_group", "_fsdp_state", "_fully_shard")
GROUP, STATE = "FSDPParamGroup", "FSDPState"
AGAIN, NEXT, LAST = f"{GROUP}._reset_iter_state", f"{GROUP}._wait_for_post_backward", "finalize_backward"
COPY_IN = "self._comm_ctx.all_gather_copy_in_stream"
GATHER = "self._comm_ctx.all_gather_stream"
CURRENT = "self.device_handle.current_stream()"
HALF = torch.bfloat16

Prepare = Callable[[Any], None]


def nothing(model: Any) -> None:
    """A step begins or ends without anything else."""


def train(
    shape: tuple[int, ...] = (2,),
    *,
    passes: int = 1,
    reduced: torch.dtype | None = torch.float32,
    offload: bool = False,
    prepared: Prepare = nothing,
    before: Prepare = nothing,
    after: Prepare = nothing,
) -> None:
    """Two steps of a model whose layers are sharded, with `passes` backward passes each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    model: Any = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)])
    more: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, reduced)}
    more |= {"offload_policy": CPUOffloadPolicy()} if offload else {}
    for layer in (*(model if offload else model.cuda()), model):
        fully_shard(layer, mesh=mesh, **more)
    prepared(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for number in range(passes):
            model.set_is_last_backward(number == passes - 1)
            before(model)
            model(torch.randn(8, 16, device="cuda")).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(model)


class Interrupted(Exception):
    """What a hook raises."""


def interrupted(model: Any) -> None:
    """A forward and a backward pass that end in the middle; the gradients so far are zeroed."""

    def fail(*_: Any) -> None:
        raise Interrupted

    for hooked in (model[2].register_forward_hook, model[1].register_full_backward_hook):
        handle = hooked(fail)
        with pytest.raises(Interrupted):
            model(torch.randn(8, 16, device="cuda")).float().square().mean().backward()
        handle.remove()
        model.reset_iter_state()
        model.zero_grad(set_to_none=False)
        torch.zeros(4096, device="cuda")


def hooks(model: Any) -> None:
    """What is reduced is halved on a stream of its own."""
    side = torch.cuda.Stream()
    for module in (model, *model):
        module.set_all_reduce_hook(lambda reduced: reduced.mul_(0.5), stream=side)


def stepped(model: Any) -> None:
    model.set_post_optim_event(torch.cuda.current_stream().record_event())


def asynchronous(model: Any) -> None:
    model._set_unshard_async_op(True)


def unsharded(model: Any) -> None:
    """A layer is gathered outside of forward."""
    model[0].unshard()
    model[0].reshard()


SCENES: dict[str, Callable[[], None]] = {
    "plain": partial(train, reduced=HALF),
    "replicated": partial(train, (2, 2)),
    "offloaded": partial(train, offload=True),
    "asynchronous": partial(train, prepared=asynchronous),
    "with a hook": partial(train, prepared=hooks),
    "with a hook, half": partial(train, reduced=HALF, prepared=hooks),
    "with an event": partial(train, after=stepped),
    "two passes": partial(train, passes=2),
    "two passes, replicated": partial(train, (2, 2), passes=2, reduced=HALF),
    "two passes, asynchronous": partial(train, passes=2, prepared=asynchronous),
    "interrupted": partial(train, reduced=HALF, before=interrupted),
    "interrupted, replicated": partial(train, (2, 2), reduced=HALF, before=interrupted),
    "interrupted, asynchronous": partial(train, before=interrupted, prepared=asynchronous),
    "unsharded": partial(train, before=unsharded),
}

FOUND = {
    "foreach_all_gather: all_gather_stream.wait_stream(all_gather_copy_in_stream)": "plain",
    "foreach_all_gather_copy_out: device_handle.current_stream().wait_event(all_gather_event)": "plain",
    "foreach_all_gather_copy_out: all_gather_work.wait()": "asynchronous",
    "foreach_reduce: reduce_scatter_stream.wait_stream(current_stream)": "plain",
    "foreach_reduce: all_reduce_stream.wait_stream(reduce_scatter_stream)": "replicated",
    "foreach_reduce: all_reduce_stream.wait_stream(reduce_scatter_stream) #2": "with a hook",
    f"{AGAIN}: current_stream.wait_event(event)": "interrupted",
    f"{GROUP}._wait_all_gather_streams_on_event: "
    f"{COPY_IN.replace('_comm', 'comm')}.wait_event(event)": "plain",
    f"{NEXT}: {CURRENT}.wait_event(self._post_reduce_event)": "two passes, replicated",
    f"{GROUP}.{LAST}: {CURRENT}.wait_event(event)": "plain",
    f"{GROUP}.{LAST}: fsdp_param.grad_offload_event.synchronize()": "offloaded",
    f"{GROUP}.{LAST}: torch.accelerator.current_stream().wait_event(event)": "two passes",
    f"{GROUP}.post_backward: {CURRENT}.wait_event(oldest.event)": "plain",
    f"{STATE}._post_forward: {COPY_IN}.wait_event(all_gather_state.event)": "plain",
    f"{STATE}._root_pre_forward: {COPY_IN}.wait_event(event)": "with an event",
    f"{STATE}._root_pre_forward: {COPY_IN}.wait_stream(current_stream)": "plain",
}
"""Each wait, with a scene in which it is missed."""

BEHIND = "the all-gather stream waits for the copy-in stream before each all-gather"
COPIES = "foreach_all_gather: all_gather_stream.wait_stream(all_gather_copy_in_stream)"
EVERY = f"{STATE}._reset_iter_state: current_stream.wait_event(event)"
EACH = f"{AGAIN}: current_stream.wait_event(self._post_reduce_event)"
TWICE = "FSDPState waits for the last of these events, each group for its own"
REDUNDANT: dict[str, tuple[str, str, tuple[str, ...]]] = {
    f"{GROUP}._wait_all_gather_streams_on_event: {GATHER.replace('_comm', 'comm')}.wait_event(event)": (
        "plain", BEHIND, (COPIES,)
    ),
    f"{STATE}._post_forward: {GATHER}.wait_event(all_gather_state.event)": ("plain", BEHIND, (COPIES,)),
    f"{STATE}._root_pre_forward: {GATHER}.wait_event(event)": ("with an event", BEHIND, (COPIES,)),
    f"{STATE}._root_pre_forward: {GATHER}.wait_stream(current_stream)": ("plain", BEHIND, (COPIES,)),
    f"{STATE}._root_post_backward_final_callback: "
    "self._device_handle.current_stream().wait_event(rs_state.event)": (
        "plain", "each group has waited for what comes behind it on that stream",
        (f"{GROUP}.{LAST}: {CURRENT}.wait_event(event)",),
    ),
    EVERY: ("interrupted", TWICE, (EACH,)),
    EACH: ("interrupted", TWICE, (EVERY,)),
    f"{STATE}._reset_iter_state: current_stream.wait_event(rs_state.event)": (
        "interrupted", "what is waited for next comes behind it on that stream", (EVERY, EACH),
    ),
    f"{AGAIN}: current_stream.wait_event(self._all_reduce_state.event)": (
        "interrupted, replicated", "what is waited for before comes behind it on that stream", (EVERY, EACH),
    ),
    f"{NEXT}: {CURRENT}.wait_event(self._all_reduce_state.event)": (
        "two passes, replicated", "what is waited for before comes behind it on that stream",
        (f"{NEXT}: {CURRENT}.wait_event(self._post_reduce_event)",),
    ),
    f"{STATE}._reset_iter_state: current_stream.wait_event(ag_state.event)": (
        "interrupted", "the event was recorded in the stream that waits", ()
    ),
    f"{AGAIN}: work.wait()": (
        "interrupted, asynchronous", "nobody reads what was gathered, and a collective keeps its memory", ()
    ),
    f"{GROUP}.{LAST}: work.wait()": (
        "two passes, asynchronous", "nobody reads what was gathered, and a collective keeps its memory", ()
    ),
    "FSDPModule.unshard: handle.wait()": (
        "unsharded", "the wait also copies out: without it nothing is there to be read", ()
    ),
}  # fmt: skip
"""Each wait that is not missed: a scene, why, and the waits without which it is."""

UNREACHED = {
    "foreach_reduce: all_reduce_stream.wait_stream(current_stream)": "for a world of less than one rank",
    f"{GROUP}.post_backward: {CURRENT}.wait_event(self._post_reduce_event)": (
        "for a group of modules of which forward runs a part"
    ),
}
"""Each wait that no scene comes to."""


def modules() -> tuple[Any, ...]:
    return tuple(
        importlib.import_module(f"torch.distributed.fsdp._fully_shard.{module}") for module in MODULES
    )


def raced(scene: str, *gone: str) -> set[str]:
    """The kinds of races in a scene without those waits."""
    with without(*gone, modules=modules()):
        try:
            with gapless.emulate(world_size=4 if "replicated" in scene else 2) as emulation:
                SCENES[scene]()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return {race.kind for race in emulation.races}


@of_its_waits
def test_every_wait_is_spoken_of() -> None:
    assert sorted({*FOUND, *REDUNDANT, *UNREACHED}) == waits(*modules())


OWN = {"with a hook, half": {"freed"}} if VERSION < (2, 15) else {}
"""A race of FSDP2's own before torch 2.15: what a hook's stream has reduced is cast and let go of there, and
its memory is the reduce-scatter stream's, whose next layer gets it without waiting. With its own all-reduce
FSDP2 keeps it; since 2.15 it keeps it for hooks, too."""


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_as_it_is_nothing_races(scene: str) -> None:
    assert raced(scene) == OWN.get(scene, set())


@of_its_waits
@pytest.mark.parametrize("wait", sorted(FOUND))
def test_a_wait_that_is_taken_out_is_missed(wait: str) -> None:
    assert raced(FOUND[wait], wait)


@of_its_waits
@pytest.mark.parametrize("wait", sorted(REDUNDANT))
def test_a_redundant_wait_is_not_missed_while_those_it_repeats_are_there(wait: str) -> None:
    scene, _, repeated = REDUNDANT[wait]
    assert raced(scene, wait) == set()
    assert not repeated or raced(scene, wait, *repeated)
