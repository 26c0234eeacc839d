"""`World`: the emulated number of ranks, and which of them this process is."""

from __future__ import annotations

import os
from typing import NamedTuple

from gapless.errors import UsageError

DEFAULT_NODE_SIZE = 8
"""GPUs of a machine by default."""
_PORT = "29500"


class World(NamedTuple):
    """This process is `rank` of `size`, `node` of which are on one machine.

    >>> World.of(1024, 13)
    World(size=1024, rank=13, node=8)
    >>> World.of(1024, 13).environment()["LOCAL_RANK"]
    '5'
    """

    size: int
    rank: int
    node: int

    @classmethod
    def of(cls, size: int, rank: int = 0, devices: int | None = None, *, launched: bool = False) -> World:
        """Return a checked world with `devices` GPUs per machine (default: 8, or all ranks if fewer).

        `launched`: the process was started from within such a world.

        Raises:
            UsageError: there is no such rank, or a launcher has started this process as one of several.
        """
        if size < 1:
            raise UsageError(f"a world of {size} ranks: it has at least one")
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is not one of {size} ranks, which are 0 to {size - 1}")
        real = os.environ.get("WORLD_SIZE", "1")
        if real.isdecimal() and int(real) > 1 and not launched:
            raise UsageError(
                f"a launcher has started this process as one of {real} ranks: leave out the launcher or the "
                "world size"
            )
        return cls(size, rank, min(devices or DEFAULT_NODE_SIZE, size))

    @property
    def local_rank(self) -> int:
        """The rank on its machine."""
        return self.rank % self.node

    def environment(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets for this rank."""
        nodes = -(-self.size // self.node)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.node),
            "GROUP_RANK": str(self.rank // self.node),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _PORT,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


_current: World | None = None


def current() -> World | None:
    """Return the emulated world, if any."""
    return _current


def enter(world: World | None) -> dict[str, str | None]:
    """Become a rank of `world`, also in the environment; return the argument for `leave`."""
    global _current
    _current = world
    variables = world.environment() if world is not None else {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before


def leave(before: dict[str, str | None]) -> None:
    """Restore the environment variables to the values in `before`; None removes one."""
    global _current
    _current = None
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
