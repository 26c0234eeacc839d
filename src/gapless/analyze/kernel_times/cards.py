"""The share of its data sheet that a GPU sustains: measured for some, their class's for others.

Fitted by ``benchmarks/kernel_times.py`` to open tables of measured kernels; its sheet says which, how far off
the model is, and how far off it is for a GPU that was left out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from gapless.model.programme import GpuRates


class Reach(NamedTuple):
    """Shares of its data sheet that a GPU sustains."""

    fp32: float
    """Share of the fp32 peak that products reach."""
    half: float
    """Share of the 16-bit peak that products reach."""
    attention: float
    """Share of the peak that attention reaches."""
    memory: float
    """Share of the bandwidth that pointwise kernels reach."""
    measured_fields: frozenset[str] = frozenset()
    """Names of the fields measured on this GPU; the others are those of its class."""
    modest: bool = False
    """Whether the card's power limit may be too low to hold its clocks."""
    unsteady: float = 0.0
    """Standard deviation of the logarithm of measured over estimated times of its products in fp32."""
    one_tile: bool = False
    """Whether its library has a single tile for batches of products in fp32."""
    start: float = 1.0
    """Start-up time of its kernels relative to an A100's."""
    norms: float = 1.0
    """Factor on the shares of bandwidth that layer norms and softmaxes reach."""
    fp64: float = 1 / 64
    """Peak in fp64 relative to fp32: two units per multiprocessor but in the largest chips (Nvidia's
    architecture white papers)."""


_SERVER = Reach(0.85, 0.76, 0.7, 0.89, fp64=1 / 2)
"""Cards with memory on the package, 250 W and more."""
_BOARD = Reach(0.8, 0.78, 0.62, 0.84)
"""Cards with GDDR, 150 W and more."""
_GEFORCE = Reach(0.8, 1.06, 0.62, 0.91)
"""Gaming cards: they clock higher than their data sheet's boost, which is a typical one, and their memory has
no error correction. None was measured in fp32."""
_MODEST = Reach(0.46, 0.5, 0.4, 0.77, modest=True)
"""Cards of 75 W and less."""

_PACKAGES = re.compile(r"\b[PV]100|\bA100|\bA800|\bG?[HB][123]00|\bH20\b|\bMI\d{3}|\bPG509", re.IGNORECASE)
_OLD = re.compile(
    r"\b[PV]100|\bGP100|\b[PT]4\b|\bT1000|\bT400|\b[GR]TX (?:10|16|20)\d0|\bTITAN", re.IGNORECASE
)
_FEW_FP32 = re.compile(r"\b[PT]4\b|\bT1000|\bT400|\b[GR]TX (?:10|16|20)\d0|\bTITAN (?:X|RTX)", re.IGNORECASE)
"""Cards with half as many fp32 units per fp64 unit as later ones."""
_NEW = re.compile(r"RTX 50\d\d|RTX PRO \d{4} Blackwell", re.IGNORECASE)
_NEW_START = 0.55
"""Relative start-up time on boards of 2025, measured on an RTX PRO 6000."""
_OLD_START = 1.4
"""Relative start-up time before the A100: the shortest kernels of a kind take so many times as long in
profiles of V100 as of A100 (``benchmarks/sheets/estimate.md``)."""
_MODEST_NAMES = re.compile(r"\b(?:P4|T4|L4|A2|T1000|T400)\b", re.IGNORECASE)

# Fields of `Reach` by GPU, fitted to its kernels.
_MEASURED: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"\bP100", {"fp32": 0.82, "memory": 0.745, "norms": 0.76, "unsteady": 0.28}),
    (r"\bV100", {"fp32": 0.93, "memory": 0.92, "start": _OLD_START}),
    (r"\bA100", {"fp32": 0.91, "half": 0.765, "attention": 0.642, "memory": 0.87, "start": 1.0}),
    (r"\bH100", {"fp32": 0.736, "half": 0.762, "attention": 0.816, "memory": 0.93, "start": 1.0}),
    (r"\bH200", {"half": 0.798, "attention": 0.809, "start": 1.0}),
    (r"\bB200", {"half": 0.728, "attention": 0.84, "start": 1.0}),
    (r"\bP4\b", {"fp32": 0.65, "memory": 0.75, "unsteady": 0.42}),
    (r"\bT4\b", {"fp32": 0.47, "memory": 0.742, "unsteady": 0.25}),
    (r"\bL4\b", {"fp32": 0.405, "memory": 0.79, "unsteady": 0.25}),
    (r"\bA40\b", {"half": 0.79, "memory": 0.83, "norms": 1.37, "start": 1.0}),
    (r"\bA6000\b", {"half": 0.725, "memory": 0.93}),
    (r"RTX 3090(?! Ti)", {"half": 1.07, "memory": 0.9}),
    (r"RTX 4090\b(?! D)", {"half": 1.047, "memory": 0.92}),
    (r"RTX PRO 6000", {"half": 0.805, "attention": 0.62, "start": 0.55}),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), shares) for pattern, shares in _MEASURED)


def _class(name: str) -> Reach:
    if _MODEST_NAMES.search(name):
        return _MODEST
    if _PACKAGES.search(name):
        return _SERVER
    return _GEFORCE if "GeForce" in name else _BOARD


@lru_cache(maxsize=256)
def reach(gpu: GpuRates) -> Reach:
    """Return what `gpu` sustains, by its name."""
    name = gpu.name.replace("-", " ").replace("_", " ")
    start = _OLD_START if _OLD.search(name) else _NEW_START if _NEW.search(name) else 1.0
    reach_ = _class(name)._replace(start=start)
    if _FEW_FP32.search(name):
        reach_ = reach_._replace(fp64=1 / 32)
    for pattern, shares in _PATTERNS:
        if pattern.search(name):
            one_tile = "A100" in name.upper()
            return reach_._replace(**shares, measured_fields=frozenset(shares), one_tile=one_tile)
    return reach_
