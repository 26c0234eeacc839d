"""The settings of a DataLoader that change how it works and not what it yields."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset

from gapless.errors import UsageError

Loader = TypeVar("Loader", bound=DataLoader)

SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)
"""What can change without changing which batches come, and in which order."""


def altered(loader: Loader, settings: dict[str, Any]) -> Loader:
    """A copy of `loader` with those `settings`, checked by torch. It has no iterator and no workers yet."""
    try:
        checked: DataLoader = DataLoader(
            _Nothing(), **{name: value for name, value in settings.items() if name in SETTINGS}
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"PyTorch rejects these settings: {error}") from None
    # A copy and not a new object: a subclass may be made from other arguments and hold things of its own.
    # The attributes are written past DataLoader's guard, which keeps them from being changed under workers.
    made = copy.copy(loader)
    for name, value in settings.items():
        if name == "multiprocessing_context":
            made.__dict__["_DataLoader__multiprocessing_context"] = checked.multiprocessing_context
        else:
            made.__dict__[name] = value
    made.__dict__["_iterator"] = None
    return made


class _Nothing(Dataset):
    def __len__(self) -> int:
        return 1
