"""Which of several processes this one is, as torchrun says it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath

_ENDING = ".gapless.json"


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of this process; 0 where it is alone."""
    return _number(environment, "RANK", 0) if several(environment) else 0


def several(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher has started this process as one of several."""
    return world(environment) > 1


def world(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes there are."""
    return max(1, _number(environment, "WORLD_SIZE", 1))


def here(environment: Mapping[str, str] = os.environ) -> int:
    """How many of them run on this machine."""
    return max(1, _number(environment, "LOCAL_WORLD_SIZE", 1))


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(environment.get(name, otherwise))
    except ValueError:
        return otherwise


def path_for(path: str, rank: int) -> str:
    """Where `rank` saves its session: ``run.gapless.json`` for 0, ``run.rank1.gapless.json`` for 1."""
    if rank == 0:
        return path
    if path.endswith(_ENDING):
        return f"{path.removesuffix(_ENDING)}.rank{rank}{_ENDING}"
    pure = PurePath(path)
    return str(pure.with_name(f"{pure.stem}.rank{rank}{pure.suffix}"))
