"""GPUs by name, and what their vendors publish about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gapless.errors import UsageError

MIB = 1024 * 1024
"""Bytes of a mebibyte."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One model of GPU: its memory, and the figures of its data sheet.

    `name` is what ``torch.cuda.get_device_name`` returns. `total_memory` is in bytes, as torch reports it: a
    little less than advertised, because the driver keeps some. Bandwidths are GB/s (10^9 bytes); `pcie` is
    one direction. Peaks are dense TFLOP/s without sparsity, tensor cores accumulating in fp32 if the vendor
    distinguishes; 0 means that the hardware has no such path. `multi_processor_count` counts compute units on
    AMD's. `source` is the document with the figures.
    """

    name: str
    aliases: tuple[str, ...]
    total_memory: int
    multi_processor_count: int
    bandwidth: float
    fp32: float
    tf32: float
    fp16: float
    bf16: float
    fp8: float
    pcie: float
    source: str = ""

    @property
    def link(self) -> float:
        """GB/s one way between the GPUs of a machine, by the data sheet; 0 if there is only PCIe."""
        return next((speed for name, speed in _LINKS.items() if self.name.startswith(name)), 0.0)

    @property
    def workspace(self) -> int:
        """Bytes that torch gives cuBLAS (hipBLAS) for each handle and stream by default.

        Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``.
        """
        if not isinstance(self, Gpu):
            return (128 if self.name.startswith("AMD Instinct MI3") else 32) * MIB
        return 32 * MIB if self.capability == (9, 0) else (2 * 4096 + 8 * 16) << 10


class Gpu(Card, frozen=True, kw_only=True):
    """A model of GPU that can be emulated: one of NVIDIA's.

    `clock` is the boost clock in MHz, `memory_bus` in bits.
    """

    capability: tuple[int, int]
    l2_bytes: int
    clock: int
    memory_bus: int
    warp_size: int = 32

    @property
    def max_threads_per_sm(self) -> int:
        """Resident threads per multiprocessor: a property of the compute capability."""
        return _SM_LIMITS[self.capability][0]

    @property
    def shared_memory_per_sm(self) -> int:
        """Bytes of shared memory per multiprocessor."""
        return _SM_LIMITS[self.capability][1] * 1024

    @property
    def shared_memory_per_block_optin(self) -> int:
        """Bytes of shared memory that one block may request."""
        return _SM_LIMITS[self.capability][2] * 1024


# (threads, KiB of shared memory) per multiprocessor and KiB per block on request, by compute capability.
# Source: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", table of technical specifications.
_SM_LIMITS: dict[tuple[int, int], tuple[int, int, int]] = {
    (7, 0): (2048, 96, 96),
    (7, 5): (1024, 64, 64),
    (8, 0): (2048, 164, 163),
    (8, 6): (1536, 100, 99),
    (8, 9): (1536, 100, 99),
    (9, 0): (2048, 228, 227),
    (10, 0): (2048, 228, 227),
    (12, 0): (1536, 100, 99),
}

# NVLink and Infinity Fabric of the forms that have them on board: half of what data sheets give both ways.
_LINKS = {
    "Tesla V100-SXM2": 150.0,
    "NVIDIA A100-SXM4": 300.0,
    "NVIDIA H100 80GB HBM3": 450.0,
    "NVIDIA H200": 450.0,
    "NVIDIA B200": 900.0,
    "AMD Instinct MI300X": 448.0,
    "AMD Instinct MI325X": 448.0,
    "AMD Instinct MI35": 537.6,
}

# Data centre and workstation. Columns: name, aliases, compute capability, MiB as torch reports them,
# multiprocessors, memory GB/s, dense TFLOP/s (fp32, tf32, fp16, bf16, fp8), L2 MiB, PCIe GB/s one way, boost
# MHz, bus bits. NVIDIA's data sheets (T4, V100, A10, A10G, A40, RTX A6000, L4, L40S, A100, H100, H200, B200)
# and architecture white papers (Turing, Volta, GA102, Ada, Ampere, Hopper); where a sheet gives sparse peaks
# only, half of them. MiB and L2: properties torch printed on such machines, as users published.
_TABLE = """
Tesla T4                | t4                     | 7.5 |  15102 |  40 |  320 |  8.1     0    65     0     0 |   4 16 1590  256
Tesla V100-SXM2-16GB    | v100 v100-16gb         | 7.0 |  16160 |  80 |  900 | 15.7     0   125     0     0 |   6 16 1530 4096
Tesla V100-SXM2-32GB    | v100-32gb              | 7.0 |  32510 |  80 |  900 | 15.7     0   125     0     0 |   6 16 1530 4096
NVIDIA A10              | a10                    | 8.6 |  22515 |  72 |  600 | 31.2  62.5   125   125     0 |   6 32 1695  384
NVIDIA A10G             | a10g                   | 8.6 |  22587 |  80 |  600 |   35    35    70    70     0 |   6 32 1710  384
NVIDIA A40              | a40                    | 8.6 |  45416 |  84 |  696 | 37.4  74.8 149.7 149.7     0 |   6 32 1740  384
NVIDIA RTX A6000        | a6000                  | 8.6 |  48676 |  84 |  768 | 38.7  77.4 154.8 154.8     0 |   6 32 1800  384
NVIDIA A100-SXM4-40GB   | a100-40gb              | 8.0 |  40536 | 108 | 1555 | 19.5   156   312   312     0 |  40 32 1410 5120
NVIDIA A100-SXM4-80GB   | a100-80gb a100         | 8.0 |  81050 | 108 | 2039 | 19.5   156   312   312     0 |  40 32 1410 5120
NVIDIA L4               | l4                     | 8.9 |  22478 |  58 |  300 | 30.3    60   121   121   242 |  48 32 2040  192
NVIDIA L40S             | l40s                   | 8.9 |  45589 | 142 |  864 | 91.6   183   362   362   733 |  96 32 2520  384
NVIDIA H100 80GB HBM3   | h100 h100-sxm h100-80gb| 9.0 |  81090 | 132 | 3350 |   67 494.7 989.4 989.4  1979 |  50 64 1980 5120
NVIDIA H100 PCIe        | h100-pcie              | 9.0 |  81008 | 114 | 2039 |   51   378   756   756  1513 |  50 64 1755 5120
NVIDIA H200             | h200                   | 9.0 | 143156 | 132 | 4800 |   67 494.7 989.4 989.4  1979 |  60 64 1980 6144
NVIDIA B200             | b200                   | 10.0| 182642 | 148 | 8000 |   75  1100  2250  2250  4500 | 126 64 1965 8192
"""  # noqa: E501 - a table

# GeForce. Columns: name, aliases, compute capability, MiB, multiprocessors, memory GB/s, boost MHz, bus bits,
# L2 MiB, PCIe GB/s one way. NVIDIA's white papers (Ampere GA102, Ada GPU Architecture, RTX Blackwell GPU
# Architecture) and the specifications on its pages of these cards. MiB: total_memory of
# torch.cuda.get_device_properties and "total capacity" in torch's messages, as users published them; cards
# with the same memory and chip share a number, the smallest that was seen is taken. GeForce RTX 50 with 8 and
# 12 GB: the totals of nvidia-smi (8151, 12227) less the 462 MiB by which both differ on the cards with 16 GB
# (16303, 15841).
_GEFORCE = """
NVIDIA GeForce RTX 3060          | rtx3060                      | 8.6  | 11931 |  28 |  360 | 1777 192  3 32
NVIDIA GeForce RTX 3060 Ti       | rtx3060ti                    | 8.6  |  7974 |  38 |  448 | 1665 256  4 32
NVIDIA GeForce RTX 3070          | rtx3070                      | 8.6  |  7974 |  46 |  448 | 1725 256  4 32
NVIDIA GeForce RTX 3070 Ti       | rtx3070ti                    | 8.6  |  7974 |  48 |  608 | 1770 256  4 32
NVIDIA GeForce RTX 3080          | rtx3080 rtx3080-10gb         | 8.6  | 10014 |  68 |  760 | 1710 320  5 32
NVIDIA GeForce RTX 3080 12GB     | rtx3080-12gb                 | 8.6  | 11931 |  70 |  912 | 1710 384  6 32
NVIDIA GeForce RTX 3080 Ti       | rtx3080ti                    | 8.6  | 11931 |  80 |  912 | 1665 384  6 32
NVIDIA GeForce RTX 3090          | rtx3090                      | 8.6  | 24259 |  82 |  936 | 1695 384  6 32
NVIDIA GeForce RTX 3090 Ti       | rtx3090ti                    | 8.6  | 24210 |  84 | 1008 | 1860 384  6 32
NVIDIA GeForce RTX 4060          | rtx4060                      | 8.9  |  7802 |  24 |  272 | 2460 128 24 16
NVIDIA GeForce RTX 4060 Ti       | rtx4060ti rtx4060ti-8gb      | 8.9  |  7802 |  34 |  288 | 2535 128 32 16
NVIDIA GeForce RTX 4060 Ti 16GB  | rtx4060ti-16gb               | 8.9  | 15934 |  34 |  288 | 2535 128 32 16
NVIDIA GeForce RTX 4070          | rtx4070                      | 8.9  | 11874 |  46 |  504 | 2475 192 36 32
NVIDIA GeForce RTX 4070 SUPER    | rtx4070-super rtx4070s       | 8.9  | 11874 |  56 |  504 | 2475 192 48 32
NVIDIA GeForce RTX 4070 Ti       | rtx4070ti                    | 8.9  | 11874 |  60 |  504 | 2610 192 48 32
NVIDIA GeForce RTX 4070 Ti SUPER | rtx4070ti-super rtx4070tis   | 8.9  | 15934 |  66 |  672 | 2610 256 48 32
NVIDIA GeForce RTX 4080          | rtx4080                      | 8.9  | 15934 |  76 |  717 | 2505 256 64 32
NVIDIA GeForce RTX 4080 SUPER    | rtx4080-super rtx4080s       | 8.9  | 15934 |  80 |  736 | 2550 256 64 32
NVIDIA GeForce RTX 4090          | rtx4090                      | 8.9  | 24210 | 128 | 1008 | 2520 384 72 32
NVIDIA GeForce RTX 5060          | rtx5060                      | 12.0 |  7689 |  30 |  448 | 2497 128 32 32
NVIDIA GeForce RTX 5060 Ti       | rtx5060ti rtx5060ti-16gb     | 12.0 | 15841 |  36 |  448 | 2572 128 32 32
NVIDIA GeForce RTX 5060 Ti 8GB   | rtx5060ti-8gb                | 12.0 |  7689 |  36 |  448 | 2572 128 32 32
NVIDIA GeForce RTX 5070          | rtx5070                      | 12.0 | 11765 |  48 |  672 | 2512 192 48 64
NVIDIA GeForce RTX 5070 Ti       | rtx5070ti                    | 12.0 | 15841 |  70 |  896 | 2452 256 48 64
NVIDIA GeForce RTX 5080          | rtx5080                      | 12.0 | 15841 |  84 |  960 | 2617 256 64 64
NVIDIA GeForce RTX 5090          | rtx5090                      | 12.0 | 32120 | 170 | 1792 | 2407 512 96 64
"""

# AMD: not emulated, but asked about. Columns: name, aliases, MiB, compute units, memory GB/s, dense TFLOP/s
# (fp32 on matrix cores, tf32, fp16, bf16, fp8), PCIe GB/s. AMD's data sheets; the MI250X
# is two GPUs, of which torch shows each: half of its sheet's figures.
_AMD = """
AMD Instinct MI210  | mi210         |  65520 | 104 | 1638 |  45.3     0  181.0  181.0      0 | 32
AMD Instinct MI250X | mi250x mi250  |  65520 | 110 | 1638 |  47.9     0  191.5  191.5      0 | 32
AMD Instinct MI300X | mi300x mi300  | 196592 | 304 | 5300 | 163.4 653.7 1307.4 1307.4 2614.9 | 64
AMD Instinct MI325X | mi325x mi325  | 262128 | 304 | 6000 | 163.4 653.7 1307.4 1307.4 2614.9 | 64
AMD Instinct MI350X | mi350x mi350  | 294896 | 256 | 8000 | 144.2     0 2306.9 2306.9 4613.8 | 64
AMD Instinct MI355X | mi355x mi355  | 294896 | 256 | 8000 | 157.3     0 2516.6 2516.6 5033.2 | 64
"""


def _parse_gpu(line: str) -> Gpu:
    name, aliases, capability, mib, processors, bandwidth, peaks, rest = _split_columns(line)
    l2_mib, pcie, clock, bus = map(int, rest.split())
    return _make_gpu(name, aliases, capability, mib, processors, bandwidth, peaks, clock, bus, l2_mib, pcie)


def _parse_geforce(line: str) -> Gpu:
    """Parse a GeForce row, with peaks by the white papers: 256 fp32 flops per multiprocessor and cycle, as
    many in tf32, twice as many in fp16 and bf16 accumulating in fp32, and from Ada on four times as many in
    fp8.
    """
    name, aliases, capability, mib, processors, bandwidth, rest = _split_columns(line)
    clock, bus, l2_mib, pcie = map(int, rest.split())
    fp32_tflops = int(processors) * 256 * clock / 1e6
    rates = (1, 1, 2, 2, 4 if float(capability) > 8.6 else 0)
    peaks = " ".join(f"{rate * fp32_tflops:.1f}" for rate in rates)
    return _make_gpu(name, aliases, capability, mib, processors, bandwidth, peaks, clock, bus, l2_mib, pcie)


def _make_gpu(
    name: str, aliases: str, capability: str, mib: str, processors: str, bandwidth: str, peaks: str,
    clock: int, bus: int, l2_mib: int, pcie: int,
) -> Gpu:  # fmt: skip
    major, minor = map(int, capability.split("."))
    return Gpu(
        **_sheet(name, aliases, mib, processors, bandwidth, peaks, pcie),
        capability=(major, minor),
        l2_bytes=l2_mib * MIB,
        clock=clock,
        memory_bus=bus,
        source=_source(name, (major, minor)),
    )


def _sheet(
    name: str, aliases: str, mib: str, processors: str, bandwidth: str, peaks: str, pcie: float
) -> dict[str, Any]:
    """Return the fields that every card has."""
    return {
        "name": name,
        "aliases": tuple(aliases.split()),
        "total_memory": int(mib) * MIB,
        "multi_processor_count": int(processors),
        "bandwidth": float(bandwidth),
        **dict(zip(("fp32", "tf32", "fp16", "bf16", "fp8"), map(float, peaks.split()), strict=True)),
        "pcie": float(pcie),
    }


def _source(name: str, capability: tuple[int, int]) -> str:
    """Return the document that a GPU's figures are from."""
    if "GeForce" in name:
        papers = {8: "Ampere GA102" if capability == (8, 6) else "Ada", 12: "RTX Blackwell"}
        return f"NVIDIA, {papers[capability[0]]} GPU Architecture (white paper)"
    model = name.removeprefix("NVIDIA ").removeprefix("Tesla ").split("-")[0].split(" 80GB")[0]
    return f"NVIDIA, {model} data sheet"


def _parse_amd(line: str) -> Card:
    name, aliases, mib, units, bandwidth, peaks, pcie = _split_columns(line)
    source = f"AMD, {name.removeprefix('AMD ')} data sheet"
    return Card(**_sheet(name, aliases, mib, units, bandwidth, peaks, float(pcie)), source=source)


def _split_columns(line: str) -> list[str]:
    return [part.strip() for part in line.split("|")]


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


# Sixteen lanes of the generation of PCIe that an architecture's data sheets name.
_LANES = (
    (r"\b(?:[HG]?[HB][12]00|B300|GB?\d00|H800|H20|RTX 50\d\d|RTX PRO|MI3\d\d)", 64.0),
    (r"\b(?:A[1-9]0|A[148]00|PG50[69]|L4|L40|L40S|RTX [34]0\d\d|RTX A\d|RTX \d000 Ada|MI[12]\d\d)", 32.0),
    (r"\b(?:[PV]100|G[PV]100|[PT]4|P40|M[46]0|K80|RTX 20\d\d|Quadro|TITAN|GTX)", 16.0),
)

GPUS: tuple[Gpu, ...] = (*map(_parse_gpu, _lines(_TABLE)), *map(_parse_geforce, _lines(_GEFORCE)))
"""The GPUs that can be emulated."""
CARDS: tuple[Card, ...] = (*GPUS, *map(_parse_amd, _lines(_AMD)))
"""All known GPUs."""


def find(name: str) -> Gpu:
    """Return the GPU to emulate by name: ``a100``, ``A100-80GB``, ``h100``, ``NVIDIA GeForce RTX 4090``.

    Raises:
        UsageError: it is unknown, or no CUDA device; the message lists the known ones.
    """
    card = _look_up(name, GPUS, CARDS)
    if not isinstance(card, Gpu):
        emulated = ", ".join(gpu.aliases[0] for gpu in GPUS)
        raise UsageError(
            f"the {card.name} is not a CUDA device and cannot be emulated. Name a CUDA device first, and "
            f"the {card.name} will be compared with it (--gpu a100,{card.aliases[0]}). These can be "
            f"emulated: {emulated}"
        )
    return card


def nearest(capability: tuple[int, int], memory: int) -> Gpu:
    """Return the GPU most like one of that compute capability and memory in bytes.

    >>> nearest((9, 0), 96 << 30).name
    'NVIDIA H100 80GB HBM3'
    """
    return min(
        GPUS,
        key=lambda gpu: (
            abs(gpu.capability[0] - capability[0]),
            abs(gpu.capability[1] - capability[1]),
            abs(gpu.total_memory - memory),
        ),
    )


def find_card(name: str) -> Card:
    """Return a GPU by name, also those known for their memory only: ``mi300x``, ``rtx4070`` and others.

    Raises:
        UsageError: it is unknown; the message lists the known ones.
    """
    return _look_up(name, CARDS, CARDS)


def pcie_bandwidth(name: str) -> float:
    """Return a GPU's PCIe bandwidth in GB/s one way at full width; 0.0 if its generation is unknown.

    Names that are in no table (engineering samples, other forms, laptops) are classified by architecture.

    >>> pcie_bandwidth("NVIDIA A100-PG509-200")
    32.0
    >>> pcie_bandwidth("Some Accelerator")
    0.0
    """
    card = next((candidate for candidate in CARDS if candidate.name == name), None)
    if card is not None:
        return card.pcie
    return next((rate for pattern, rate in _LANES if re.search(pattern, name, re.IGNORECASE)), 0.0)


def _look_up(name: str, listed: Sequence[Card], cards: Sequence[Card]) -> Card:
    wanted = _key(name)
    by_key = {_key(alias): card for card in cards for alias in (card.name, *card.aliases)}
    if wanted in by_key:
        return by_key[wanted]
    import difflib

    close = difflib.get_close_matches(wanted, by_key, n=1)
    hint = f" Did you mean {by_key[close[0]].aliases[0]}?" if close else ""
    known_names = ", ".join(card.aliases[0] for card in listed)
    raise UsageError(f"unknown GPU {name!r}.{hint} Known GPUs: {known_names}")


def _key(name: str) -> str:
    """Return the part of a name that identifies a GPU: no vendor, family, form factor, punctuation or
    case."""
    words = (word.removesuffix("gb") for word in re.split(r"[\s_\-]+", name.strip().lower()))
    return "".join(re.sub(r"^(nvidia|tesla|geforce|amd|instinct|sxm\d*|rtx)", "", word) for word in words)


DEFAULT = find("a100")
