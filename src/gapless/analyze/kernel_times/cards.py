"""How much of its data sheet a GPU sustains: measured for some, a class's for the others.

Fitted by ``benchmarks/kernel_times.py`` to open tables of measured kernels; its sheet says which, how far off
the model is, and how far off it is for a GPU that was left out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from gapless.model.programme import Gpu


class Reach(NamedTuple):
    """Shares of the peaks of arithmetic in fp32, in 16 bits and of attention, and of memory's bandwidth.

    `known` says which of them were measured on this GPU; the others are those of its class. `modest` says
    that the card may take so little power that it cannot hold its clocks, `unsteady` how far its products
    differ from what the formulas say (a standard deviation of the logarithm), `one_tile` that batches of
    products in fp32 are cut in one way only. `start` is how long its kernels take to start,
    in parts of what those of an A100 and later ones do, `norms` what share of their bandwidth its layer norms
    and softmaxes reach, `fp64` what its units for that do in parts of those for fp32 (Nvidia's architecture
    white papers: two for each multiprocessor but in the largest chips).
    """

    fp32: float
    half: float
    attention: float
    memory: float
    known: frozenset[str] = frozenset()
    modest: bool = False
    unsteady: float = 0.0
    one_tile: bool = False
    start: float = 1.0
    norms: float = 1.0
    fp64: float = 1 / 64


_SERVER = Reach(0.85, 0.76, 0.7, 0.89, fp64=1 / 2)
"""Memory on the package, 250 W and more."""
_BOARD = Reach(0.8, 0.78, 0.62, 0.84)
"""GDDR, 150 W and more."""
_GEFORCE = Reach(0.8, 1.06, 0.62, 0.91)
"""The same for players: they clock higher than their data sheet's boost, which is a typical one, and their
memory corrects no errors. In fp32 none was measured."""
_MODEST = Reach(0.46, 0.5, 0.4, 0.77, modest=True)
"""75 W and less."""

_PACKAGES = re.compile(r"\b[PV]100|\bA100|\bA800|\bG?[HB][123]00|\bH20\b|\bMI\d{3}|\bPG509", re.IGNORECASE)
_OLD = re.compile(
    r"\b[PV]100|\bGP100|\b[PT]4\b|\bT1000|\bT400|\b[GR]TX (?:10|16|20)\d0|\bTITAN", re.IGNORECASE
)
_FEW_FP32 = re.compile(r"\b[PT]4\b|\bT1000|\bT400|\b[GR]TX (?:10|16|20)\d0|\bTITAN (?:X|RTX)", re.IGNORECASE)
"""Cards with half as many units for fp32 for each of those for fp64 as later ones."""
_NEW = re.compile(r"RTX 50\d\d|RTX PRO \d{4} Blackwell", re.IGNORECASE)
_NEW_START = 0.55
"""Start-up times on boards of 2025: measured on an RTX PRO 6000."""
_OLD_START = 1.4
"""Start-up times before the A100: in profiles of V100 the shortest kernels of a kind take so many times as
long as in those of an A100 (``benchmarks/sheets/estimate.md``)."""
_MODEST_NAMES = re.compile(r"\b(?:P4|T4|L4|A2|T1000|T400)\b", re.IGNORECASE)

# With `unsteady`, the standard deviation of what a card's products in fp32 take beyond what the formulas say.
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
def reach(gpu: Gpu) -> Reach:
    """Return what `gpu` sustains, by its name."""
    name = gpu.name.replace("-", " ").replace("_", " ")
    start = _OLD_START if _OLD.search(name) else _NEW_START if _NEW.search(name) else 1.0
    reach_ = _class(name)._replace(start=start)
    if _FEW_FP32.search(name):
        reach_ = reach_._replace(fp64=1 / 32)
    for pattern, shares in _PATTERNS:
        if pattern.search(name):
            one_tile = "A100" in name.upper()
            return reach_._replace(**shares, known=frozenset(shares), one_tile=one_tile)
    return reach_
