"""Estimate how long the collectives of a step take from the bytes a rank moves and the links of the GPUs.

A collective takes ``L + T + bend·√(L·T)``: `L` for its steps from rank to rank, `T` for the rank's bytes over
the bandwidth that rings reach. The constants are fitted to measurements of nccl-tests that aiconfigurator
publishes (Apache-2.0), by ``benchmarks/collective_times.py``; its sheet gives the errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from gapless.analyze.estimate.programme_steps import Step
from gapless.model.programme import Entry, GpuRates, Programme


class GpuLinks(NamedTuple):
    """The links between the GPUs of a machine.

    Nanoseconds to begin and for each step from rank to rank, how gradually a collective reaches its
    bandwidth, the shares of the data sheet that 2, 4 and 8 ranks reach, and the uncertainty of all that (a
    standard deviation of the logarithm).
    """

    begin: float
    step: float
    bend: float
    shares: dict[str, tuple[float, float, float]]
    spread: float


_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def _links(
    begin: float, step: float, bend: float, spread: float, *shares: tuple[float, float, float]
) -> GpuLinks:
    return GpuLinks(begin, step, bend, dict(zip(_KINDS, shares, strict=True)), spread)


MEASURED: tuple[tuple[str, GpuLinks], ...] = (
    ("A100", _links(8_630, 860, 1.2, 0.17, (0.68, 0.78, 0.81), (0.54, 0.69, 0.74), (0.62, 0.73, 0.79),
                    (0.61, 0.72, 0.75))),
    # From H100 on, the switch reduces for all GPUs of a machine: more than the links would carry.
    ("H100|H200|H800|GH200", _links(4_630, 810, 1.13, 0.11, (0.74, 0.87, 1.10), (0.60, 0.76, 0.83),
                                    (0.57, 0.76, 0.88), (0.71, 0.78, 0.79))),
    ("B200|B300", _links(7_140, 1_330, 0.96, 0.1, (0.67, 0.78, 0.88), (0.55, 0.71, 0.81), (0.52, 0.70, 0.80),
                         (0.42, 0.63, 0.71))),
    # A machine without peer access over PCIe: data goes through the host.
    ("L40S", _links(4_590, 980, 0.56, 0.5, (0.64, 0.17, 0.047), (0.62, 0.15, 0.039), (0.59, 0.16, 0.05),
                    (0.72, 0.15, 0.038))),
)  # fmt: skip
NVLINK = _links(7_000, 1_000, 1.1, 0.25, (0.70, 0.79, 0.85), (0.57, 0.72, 0.79), (0.57, 0.73, 0.82),
                (0.57, 0.70, 0.75))  # fmt: skip
"""Other GPUs with links of their own: values between those measured."""
PCIE = _links(3_560, 1_450, 0.84, 0.5, (0.61, 0.43, 0.39), (0.52, 0.39, 0.37), (0.51, 0.40, 0.38),
              (0.48, 0.39, 0.29))  # fmt: skip
"""PCIe with peer access, as measured on the RTX PRO 6000; other machines may be eight times slower."""
NETWORK_EFFICIENCY, HOP_NANOSECONDS = 0.78, 12_000.0
"""Share of the network's data sheet that is reached, and nanoseconds per doubling of machines."""
DEFAULT_NETWORK = 50.0
"""GB/s of the network per GPU and direction unless specified: 400 Gbit/s."""
DEFAULT_GPUS_PER_NODE = 8
"""GPUs per machine unless specified: NVIDIA's HGX and DGX have eight."""
_RANKS = re.compile(r"ranks (\d+)(?:-(\d+)|, (\d+))")


def links_of(gpu: GpuRates) -> GpuLinks:
    """Return the links between GPUs of that kind within a machine."""
    for pattern, links_ in MEASURED:
        if re.search(pattern, gpu.name) and (gpu.link > gpu.pcie or pattern == "L40S"):
            return links_
    return NVLINK if gpu.link > gpu.pcie else PCIE


class CommunicationTime(NamedTuple):
    """Nanoseconds of a step's collectives one after the other; the part that the stream awaits at once, so
    that nothing can hide it; and the uncertainty, as in `collective_spread`."""

    time: int = -1
    exposed: int = 0
    doubt: float = 0.0


def communication_time(steps: Sequence[Step], programme: Programme) -> CommunicationTime:
    """Return the mean time of a step's collectives. An error of the links is the same for all of them."""
    total = doubt = exposed = 0.0
    for step in steps:
        stream = operators = 0
        under_way: list[tuple[float, int]] = []  # how long each takes, and the operators launched before it
        for entry in step:
            if entry.kind == "stream":
                stream = entry.stream
            elif entry.kind == "operator":
                operators += 1
            elif entry.kind == "await" and entry.number < 0:
                awaited = under_way[: max(len(under_way) + entry.number + 1, 0)]
                under_way[: len(awaited)] = [(0.0, -1)] * len(awaited)
                if stream == 0:  # on a stream of its own nothing else is held up
                    exposed += sum(time for time, before in awaited if before == operators)
            elif entry.kind == "collective":
                counts = entry.detail != "host" and entry.ranks > 1
                time = collective_time(entry, programme) if counts else 0.0
                under_way.append((time, operators))
                total += time
                doubt += time * collective_spread(entry, programme) if counts else 0.0
    count = max(len(steps), 1)
    return CommunicationTime(round(total / count), round(exposed / count), doubt / total if total else 0.0)


def collective_time(entry: Entry, programme: Programme) -> float:
    """Nanoseconds of one collective."""
    begin = latency(entry, programme)
    moving = max(ring_bytes(entry)) / bandwidth(entry, programme)
    return begin + moving + links_of(programme.gpu).bend * math.sqrt(begin * moving)


def collective_spread(entry: Entry, programme: Programme) -> float:
    """The standard deviation of the logarithm of the true time over that of `collective_time`."""
    crosses = entry.ranks > _ranks_per_machine(entry, programme.node or DEFAULT_GPUS_PER_NODE)
    patterns = 0.12 if entry.name == "all_to_all" else 0.0
    return math.hypot(links_of(programme.gpu).spread, patterns, 0.4 if crosses else 0.0)


def latency(entry: Entry, programme: Programme) -> float:
    """Nanoseconds of the smallest collective: steps within the machine, and doublings over machines."""
    joined, local = (
        links_of(programme.gpu),
        _ranks_per_machine(entry, programme.node or DEFAULT_GPUS_PER_NODE),
    )
    inside = min(entry.ranks, local)
    if entry.name == "all_to_all":
        begin, steps = joined.begin + 2_500, 0.4 * (inside - 1)
    else:
        begin, steps = joined.begin, (inside - 1) * (2.0 if entry.name == "all_reduce" else 1.0)
    machines = max(-(-entry.ranks // local), 1)
    return begin + joined.step * steps + HOP_NANOSECONDS * math.log2(machines)


def bandwidth(entry: Entry, programme: Programme) -> float:
    """GB/s of a ring through this group: the link within a machine, network cards between machines.

    A ring passes through each machine by as many cards as the group has GPUs there.
    """
    gpu, node = programme.gpu, programme.node or DEFAULT_GPUS_PER_NODE
    local = _ranks_per_machine(entry, node)
    inside = max(gpu.link, gpu.pcie, 1.0) * _bandwidth_share(
        links_of(gpu), entry.name, min(entry.ranks, local)
    )
    if entry.ranks <= local:
        return inside
    return min(inside, (programme.network or DEFAULT_NETWORK) * NETWORK_EFFICIENCY * local)


def _bandwidth_share(joined: GpuLinks, name: str, ranks: int) -> float:
    """Share of the bandwidth that so many ranks of a machine reach, interpolated between 2, 4 and 8."""
    shares = joined.shares.get(name) or joined.shares["all_gather"]
    place = min(max(math.log2(max(ranks, 1)) - 1, 0.0), 2.0)
    low = min(int(place), 1)
    return shares[low] + (shares[low + 1] - shares[low]) * (place - low)


def _ranks_per_machine(entry: Entry, node: int) -> int:
    """How many of the group's ranks are in one machine, judging by the group's name."""
    match = _RANKS.search(entry.group)
    if match is None:
        return min(node, entry.ranks)
    first, last, second = (int(number) if number else -1 for number in match.groups())
    if last >= 0:  # neighbours, which may begin in the middle of a machine
        return min(entry.ranks, node - first % node)
    return max(min(node // max(second - first, 1), entry.ranks), 1)


def describe_assumptions(moving: CommunicationTime, programme: Programme) -> str:
    """Describe the assumptions behind the time of collectives in a sentence."""
    time, exposed = moving.time, moving.exposed
    hidden = "half hidden behind the GPU's work; fully hidden to not at all in the interval"
    if exposed:
        hidden = f"{exposed / 1e6:.3g} ms of it waited for at once, the rest {hidden}"
    gpu, node = programme.gpu, programme.node or DEFAULT_GPUS_PER_NODE
    name, link = ("its links", gpu.link) if gpu.link > gpu.pcie else ("PCIe", gpu.pcie)
    network = programme.network or DEFAULT_NETWORK
    return (
        f"collectives take {time / 1e6:.3g} ms at {name}' {link:g} GB/s within {node} GPUs and {network:g} "
        f"GB/s for each GPU between machines, less what rings do not reach; {hidden}; the other ranks "
        "come in when this one does, and are as late"
    ).replace("PCIe'", "PCIe's")


def ring_bytes(entry: Entry) -> tuple[float, float]:
    """Return the bytes that this rank sends and receives with rings (``NCCL-tests``, ``PERFORMANCE.md``).

    Trees and reducing switches move less for an all-reduce; nothing moves less for the others.
    """
    input_bytes, output_bytes = entry.reads, entry.writes
    share = (entry.ranks - 1) / entry.ranks if entry.ranks else 0.0
    if entry.name == "all_reduce":
        return 2 * share * input_bytes, 2 * share * input_bytes
    if entry.name == "all_gather":
        return share * output_bytes, share * output_bytes
    if entry.name in ("reduce_scatter", "all_to_all"):
        return share * input_bytes, share * input_bytes
    return input_bytes, output_bytes
