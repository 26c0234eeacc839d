"""Record the bytes each collective moves, for the programme, whichever backend carries them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.model import SourceLine
from gapless.model.programme import Entry
from gapless.torch_internals import current_node

_KINDS = {
    "all_reduce": "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced "
    "all_reduce_coalesced_",
    "all_gather": "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ "
    "all_gather_into_tensor all_gather_into_tensor_out all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_ "
    "reduce_scatter_tensor reduce_scatter_tensor_out reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall_ alltoall_base_ all_to_all_single shard_dim_alltoall",
    "broadcast": "broadcast_ broadcast",
    "reduce": "reduce_",
    "gather": "gather_ gather_into_tensor_",
    "scatter": "scatter_",
    "send": "send isend",
    "recv": "recv_ recv_any_source_ irecv",
    "barrier": "barrier",
}
KIND = {name: kind for kind, names in _KINDS.items() for name in names.split()}
"""The kind of collective by operator."""

_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
"""Arguments that hold results; the other tensors are inputs."""
_MAX_UNAWAITED = 4096
"""Results of functional collectives that may wait to be awaited; more mean that nobody waits."""
_ROOTS = {
    "broadcast": (True, False),
    "scatter": (True, False),
    "reduce": (False, True),
    "gather": (False, True),
}
"""Whether only the root sends, and whether only the root receives."""


def record(core: EmulationCore, name: str, values: dict[str, Any], group: Any, index: int) -> int:
    """Record that this rank takes part in a collective on device `index` (-1: on the host).

    Returns its number, for `record_await`; 0 if nothing is recorded.
    """
    programme = core.recorder.programme
    if programme is None or local.quiet or not core.enabled:
        return 0
    if name == "batch_p2p_ops":
        for kind, peer, tensor in zip(values["op_list"], values["peer_list"], values["tensors"], strict=True):
            record(core, kind, {"tensor": tensor, "dst": peer, "src": peer}, group, index)
        return 0
    kind = KIND[name]
    sent, received = _moved_bytes(kind, values, group)
    kept = programme.event(
        Entry(
            kind="collective",
            name=kind,
            dtype=str(next((tensor.dtype for tensor in trees.tensors(values)), "")).removeprefix("torch."),
            reads=sent,
            writes=received,
            ranks=group.size(),
            group=_peer_name(kind, values, group) or group_name(group),
            detail="host" if index < 0 and kind != "barrier" else "",
            backward=local.backward != HOST,
            optimizer=programme.optimizing,
            line=_user_line(core),
        )
    )
    if not kept:
        return 0
    programme.collectives += 1
    if values.get("async_op") is False and not local.coalescing:
        record_await(core, programme.collectives)
    return programme.collectives


def record_await(core: EmulationCore, number: int) -> None:
    """Record that the current stream waits for the collective of that number."""
    programme = core.recorder.programme
    if programme is not None and number and not local.quiet and core.enabled:
        programme.event(Entry(kind="await", number=number - programme.collectives - 1))


def remember_results(core: EmulationCore, number: int, outs: Any) -> None:
    """Remember that `outs` are results of the functional collective of that number, for `collective_of`."""
    programme = core.recorder.programme
    if programme is not None and number:
        if len(programme.unawaited) > _MAX_UNAWAITED:
            programme.unawaited.clear()  # nobody waits for them
        addresses = (tensor.untyped_storage()._cdata for tensor in trees.tensors(outs))
        programme.unawaited.update(dict.fromkeys(addresses, number))


def collective_of(core: EmulationCore, out: torch.Tensor) -> int:
    """Return the number of the collective that produced `out`; 0 if unknown."""
    programme = core.recorder.programme
    return programme.unawaited.pop(out.untyped_storage()._cdata, 0) if programme is not None else 0


def _moved_bytes(kind: str, values: dict[str, Any], group: Any) -> tuple[int, int]:
    """Return the bytes that this rank sends and those that it has in the end."""
    if kind == "barrier":
        return 0, 0
    outputs = sum(map(_size, trees.tensors([values[name] for name in _OUTPUTS if name in values])))
    inputs = sum(map(_size, trees.tensors([value for name, value in values.items() if name not in _OUTPUTS])))
    if kind == "send":
        return inputs, 0
    if kind == "recv":
        return 0, inputs
    if not outputs:  # in place, or a functional one, which allocates its results
        outputs = inputs * group.size() if kind == "all_gather" else inputs
        outputs = inputs // group.size() if kind == "reduce_scatter" else outputs
    if kind in _ROOTS:
        alone_gives, alone_gets = _ROOTS[kind]
        root = group.rank() == values.get("root_rank", values.get("src"))
        inputs = inputs if root or not alone_gives else 0
        outputs = outputs if root == alone_gets else 0
    return inputs, outputs


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _peer_name(kind: str, values: dict[str, Any], group: Any) -> str:
    """Return the rank that a message is sent to or comes from."""
    if kind not in ("send", "recv"):
        return ""
    peer = values.get("dst" if kind == "send" else "src")
    return "any rank" if peer is None else f"rank {dist.get_global_rank(group, peer)}"


def group_name(group: Any) -> str:
    """Return ``all 8 ranks``, or ``tp: ranks 0-7`` with the name of the group or its mesh."""
    try:
        ranks = tuple(sorted(dist.get_process_group_ranks(group)))
    except (KeyError, RuntimeError, ValueError):  # unknown to torch
        return f"{group.size()} ranks"
    return _group_label(str(getattr(group, "group_desc", "")), ranks, dist.get_world_size())


@lru_cache(maxsize=1024)
def _group_label(name: str, ranks: tuple[int, ...], world: int) -> str:
    if len(ranks) == world:
        return f"all {world} ranks"
    name, ranks_text = name.removeprefix("mesh_"), format_ranks(ranks)
    return ranks_text if name in ("", "undefined") or ":" in name else f"{name}: {ranks_text}"


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as ``ranks 0, 8, …, 120``.

    >>> format_ranks([0, 1, 2, 3]), format_ranks([0, 8, 16, 24]), format_ranks([3])
    ('ranks 0-3', 'ranks 0, 8, ..., 24', 'rank 3')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    if len(ranks) > 3:
        return f"ranks {ranks[0]}, {ranks[1]}, ..., {ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


def _user_line(core: EmulationCore) -> SourceLine | None:
    """Return the user's line; in backward that of the forward call, if known."""
    if local.backward != HOST:
        node = current_node()
        if node is not None:
            forward = stacks.resolve(core._forward_of(node._sequence_nr()))
            line = next((frame for frame in forward if frame.is_user), None)
            if line is not None:
                return line
    stack = stacks.resolve(stacks.capture(2) + local.above)
    return next((frame for frame in stack if frame.is_user), None)
