"""Backends of one rank without the others: since torch 2.14 a group is as large as its backend."""

from __future__ import annotations

from typing import Any

from gapless.torch_internals import VERSION, Backend, FakeWork


def lone_backend() -> Any:
    """The class of backends of any rank and size that carry nothing; None where none can be made in Python.

    What goes through them is answered before it comes to them (`answers`).
    """
    if VERSION < (2, 14):
        return None

    class Lone(Backend):  # type: ignore[misc, valid-type]
        """Connects nobody, and meets nobody."""

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
            """All others have come."""

    for name in dir(Backend):
        if name.lstrip("_").startswith("supports_"):
            setattr(Lone, name, False)
    return Lone
