"""How long the collectives of a step take: from the bytes that a rank moves, and what joins the GPUs.

A collective takes ``L + T + s·√(L·T)``, where `T` is what the rank moves over the bandwidth of its ring. `L`,
`s` and the shares of the links' data sheets are those of measured all-reduces of 8 ranks (A100, PCIe cards).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gapless.analyze.estimate.steps import Step
from gapless.model.programme import Entry, Programme

LATENCY, BEND = 21_000.0, 0.75
"""Nanoseconds of the smallest collective, and how slowly it comes to its bandwidth."""
NVLINK, PCIE = 0.78, 0.39
"""Shares of the data sheet that rings reach over NVLink (and the network), and over PCIe."""
NETWORK = 50.0
"""GB/s of the network for each GPU, one way, where nothing is said: 400 Gbit/s."""
NODE = 8
_RANKS = re.compile(r"ranks (\d+)(?:-(\d+)|, (\d+))")


def communication(steps: Sequence[Step], programme: Programme) -> int:
    """Nanoseconds of a step's collectives on the device, one after the other, in the mean."""
    total = sum(
        collective_time(entry, programme)
        for step in steps
        for entry in step
        if entry.kind == "collective" and entry.detail != "host" and entry.ranks > 1
    )
    return round(total / len(steps))


def collective_time(entry: Entry, programme: Programme) -> float:
    """Nanoseconds of one collective."""
    moving = max(moved(entry)) / bandwidth(entry, programme)
    return LATENCY + moving + BEND * math.sqrt(LATENCY * moving)


def bandwidth(entry: Entry, programme: Programme) -> float:
    """GB/s of a ring through this group: the link within a machine, the network's cards between machines.

    A ring goes through each machine by as many cards as the group has GPUs there.
    """
    gpu, node = programme.gpu, programme.node or NODE
    share = NVLINK if gpu.link > gpu.pcie else PCIE
    inside = max(gpu.link, gpu.pcie, 1.0) * share
    local = _in_a_machine(entry, node)
    if entry.ranks <= local:
        return inside
    return min(inside, (programme.network or NETWORK) * NVLINK * local)


def _in_a_machine(entry: Entry, node: int) -> int:
    """How many of the group's ranks are in one machine, by what the group is called."""
    found = _RANKS.search(entry.group)
    if found is None:
        return min(node, entry.ranks)
    first, last, second = (int(one) if one else -1 for one in found.groups())
    if last >= 0:  # neighbours, which may begin in the middle of a machine
        return min(entry.ranks, node - first % node)
    return max(min(node // max(second - first, 1), entry.ranks), 1)


def assumed(time: int, programme: Programme) -> str:
    """What that takes for granted, in a sentence."""
    gpu, node = programme.gpu, programme.node or NODE
    name, link = ("its links", gpu.link) if gpu.link > gpu.pcie else ("PCIe", gpu.pcie)
    network = programme.network or NETWORK
    return (
        f"collectives take {time / 1e6:.3g} ms at {name}' {link:g} GB/s within {node} GPUs and {network:g} "
        "GB/s for each GPU between machines, less what rings do not reach; hidden behind the GPU's work as "
        "far as they can be, and not at all at the upper end; every rank comes in time"
    ).replace("PCIe'", "PCIe's")


def moved(entry: Entry) -> tuple[float, float]:
    """Bytes that this rank sends and receives, as rings move them (``NCCL-tests``, ``PERFORMANCE.md``).

    Trees and switches that reduce move less of an all-reduce; nothing moves less of the others.
    """
    brought, has = entry.reads, entry.writes
    others = (entry.ranks - 1) / entry.ranks if entry.ranks else 0.0
    if entry.name == "all_reduce":
        return 2 * others * brought, 2 * others * brought
    if entry.name == "all_gather":
        return others * has, others * has
    if entry.name in ("reduce_scatter", "all_to_all"):
        return others * brought, others * brought
    return brought, has
