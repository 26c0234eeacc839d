"""`CompareOptions`: how two callables are compared."""

from __future__ import annotations

import os
from typing import Any

import msgspec


class CompareOptions(msgspec.Struct, frozen=True):
    """The inputs for which two callables are compared, and how; `compare` describes each option."""

    inputs: Any = None
    cases: Any = None
    only: tuple[str, ...] = ()
    edge_cases: bool = True
    gradients_of: tuple[str, ...] = ()
    backward: bool = True
    bounded: bool = False
    contract: Any = None
    rtol: float | None = None
    atol: float | None = None
    seconds: float = 5.0
    sweep: tuple[str, tuple[float | str, ...]] | None = None
    seed: int = 0
    gpu: str | None = None
    device: str | None = None
    output: str | os.PathLike[str] | None = None
