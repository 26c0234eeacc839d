"""Backends of one rank without the others: since torch 2.14 a group has its backend's size."""

from __future__ import annotations

from typing import Any

from gapless.torch_internals import VERSION, Backend, FakeWork


def lone_backend() -> Any:
    """Return a backend class for any rank and size that moves nothing; None if Python cannot define one.

    Collectives are answered before they reach the backend (`answers`).
    """
    if VERSION < (2, 14):
        return None

    class Lone(Backend):  # type: ignore[misc, valid-type]
        """Connects to no other rank."""

        def __init__(self, rank: int, size: int, options: Any) -> None:
            super().__init__(rank, size)
            self.given_options = options

        @property
        def options(self) -> Any:
            return self.given_options

        def getBackendName(self) -> str:  # noqa: N802 - as C++ calls it
            return str(self.name())

        def barrier(self, options: Any = None) -> Any:
            return FakeWork()

        def monitored_barrier(self, options: Any = None, wait_all_ranks: bool = False) -> None:
            """Do nothing: all others have come."""

    for name in dir(Backend):
        if name.lstrip("_").startswith("supports_"):
            setattr(Lone, name, False)
    return Lone
