"""Which of several processes this one is, according to torchrun or to --world-size and --rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from gapless.errors import UsageError

if TYPE_CHECKING:
    from gapless.emulation.options import EmulatorOptions
    from gapless.model import Ending

_LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.runner", "horovodrun", "mpirun",
)  # fmt: skip
_ENDING = ".gapless.json"


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process, 0 if it is alone."""
    return _number(environment, "RANK", 0) if several(environment) else 0


def several(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process as one of several."""
    return world(environment) > 1


def world(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes."""
    return max(1, _number(environment, "WORLD_SIZE", 1))


def here(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes on this machine."""
    return max(1, _number(environment, "LOCAL_WORLD_SIZE", 1))


def refuse_rank(options: EmulatorOptions) -> None:
    """Refuse a rank that there is not.

    Raises:
        UsageError: ``--rank`` stands alone or names no rank, or a launcher started real ranks.
    """
    if options.rank is not None and options.world_size is None:
        raise UsageError("--rank R needs --world-size N")
    options.world()


def refuse_launcher(name: str) -> None:
    """Refuse to simulate a rank of a launcher, which would start ranks itself.

    Raises:
        UsageError: `name` is a launcher.
    """
    if os.path.basename(name) in _LAUNCHERS:
        raise UsageError(
            f"{name} starts ranks, but --world-size makes this process the only one: pass the script that "
            "it starts, with the script's own arguments"
        )


def describe_end(rank: int, ending: Ending) -> str:
    """Say that `rank` ended before its time, perhaps because rank 0, which reports, is gone; "" if it did
    not, and for Ctrl-C, which rank 0 gets, too."""
    if ending.is_good or (ending.how == "interrupted" and not ending.message):
        return ""
    return f"rank {rank} {f'was stopped by {ending.message}' if ending.how == 'interrupted' else 'failed'}"


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    try:
        return int(environment.get(name, otherwise))
    except ValueError:
        return otherwise


def path_for(path: str, rank: int) -> str:
    """Return where `rank` saves its session: ``run.gapless.json`` for 0, ``run.rank1.gapless.json`` for 1."""
    if rank == 0:
        return path
    if path.endswith(_ENDING):
        return f"{path.removesuffix(_ENDING)}.rank{rank}{_ENDING}"
    pure = PurePath(path)
    return str(pure.with_name(f"{pure.stem}.rank{rank}{pure.suffix}"))
