"""How often a metric was updated, and its cached results, on the host."""

from __future__ import annotations

from typing import Any, ClassVar


class UpdateHistory:
    """The updates of a metric, or of all members of a collection that share statistics.

    `updated` and `count` tell of updates since the last reset, `ever` whether there were any before it.
    `computed` holds results until the next update, by the id of the metric or collection.
    """

    def __init__(self) -> None:
        self.updated = False
        self.ever = False
        self.count = 0
        self.computed: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "computed": {}}  # The keys are ids of objects in this process.

    def record_update(self, counted: bool) -> None:
        """Record an update, and forget results; only if `counted` it changes the count."""
        self.updated = True
        if self.computed:
            self.computed.clear()
        if counted:
            self.count += 1

    def record_reset(self) -> None:
        """Record a reset."""
        self.ever = self.ever or self.updated
        self.updated = False
        self.count = 0
        self.computed.clear()


class SavedWhole:
    """What can be pickled, and loaded by later versions that name its attributes otherwise."""

    former_names: ClassVar[dict[str, str]] = {"_ledger": "_history", "_lender": "_collection"}
    """Attributes in the state that earlier versions saved, each with the name it has now."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore = getattr(super(), "__setstate__", self.__dict__.update)  # `nn.Module` has one
        restore({self.former_names.get(name, name): value for name, value in state.items()})
