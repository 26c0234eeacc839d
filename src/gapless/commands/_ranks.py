"""Which of several processes this one is, as torchrun says it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath

_ENDING = ".gapless.json"


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of this process; 0 where it is alone."""
    try:
        several = int(environment.get("WORLD_SIZE", "1")) > 1
        return int(environment.get("RANK", "0")) if several else 0
    except ValueError:
        return 0


def path_for(path: str, rank: int) -> str:
    """Where `rank` saves its session: ``run.gapless.json`` for 0, ``run.rank1.gapless.json`` for 1."""
    if rank == 0:
        return path
    if path.endswith(_ENDING):
        return f"{path.removesuffix(_ENDING)}.rank{rank}{_ENDING}"
    pure = PurePath(path)
    return str(pure.with_name(f"{pure.stem}.rank{rank}{pure.suffix}"))
