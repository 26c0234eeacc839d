"""Settings of a DataLoader that change how it works but not what it yields."""

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
"""Settings that change neither the batches nor their order."""


def with_settings(loader: Loader, settings: dict[str, Any]) -> Loader:
    """Return a copy of `loader` with `settings`, checked by torch, without iterator and workers."""
    try:
        checked: DataLoader = DataLoader(
            _OneItemDataset(), **{name: value for name, value in settings.items() if name in SETTINGS}
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"PyTorch rejects these settings: {error}") from None
    # A copy and not a new object: a subclass may need other arguments and have state of its own.
    # The attributes bypass DataLoader's guard, which prevents changes under running workers.
    changed = copy.copy(loader)
    for name, value in settings.items():
        if name == "multiprocessing_context":
            changed.__dict__["_DataLoader__multiprocessing_context"] = checked.multiprocessing_context
        else:
            changed.__dict__[name] = value
    changed.__dict__["_iterator"] = None
    return changed


class _OneItemDataset(Dataset):
    def __len__(self) -> int:
        return 1
