"""`tune`: the same loader with other settings of how it works, never of what it yields."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from gapless.errors import UsageError
from gapless.loading.lines import is_user, short_path
from gapless.loading.settings import SETTINGS, Loader, with_settings
from gapless.loading.sharding import Shard

_ONLY_WITH_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}


def tune(loader: Loader, **settings: Any) -> Loader:
    """Return an equal loader with other `settings`, by default those that `diagnose` recommends for it.

    The class, dataset, sampler, batch sampler, `collate_fn` and generator are the same, so that the same
    batches come in the same order; `loader` is unchanged. Settings are `num_workers`, `prefetch_factor`,
    `persistent_workers`, `pin_memory`, `timeout`, `worker_init_fn` and `multiprocessing_context`. Those that
    need workers are dropped with ``num_workers=0``. As in PyTorch itself, random numbers *inside* items
    differ with the number of workers, and persistent workers draw no new seed, so that a shuffled order from
    the same random state differs from the second epoch on.

    Raises:
        UsageError: a setting that would change what the loader yields, a value that torch rejects, or more
            workers for an IterableDataset that does not divide its items among them.
    """
    for name in settings:
        if name not in SETTINGS:
            raise UsageError(
                f"tune() does not change {name}, because that could change what the loader yields"
            )
    if not settings:
        settings = _recommend(loader)
    now = {name: getattr(loader, name) for name in SETTINGS}
    wanted = {**now, **settings}
    if not wanted["num_workers"]:
        for name, without in _ONLY_WITH_WORKERS.items():
            if settings.get(name):
                raise UsageError(f"{name}={settings[name]!r} needs num_workers above 0")
            wanted[name] = without
    elif wanted["prefetch_factor"] is None:
        wanted["prefetch_factor"] = 2
    if isinstance(loader.dataset, IterableDataset) and wanted["num_workers"] > max(1, loader.num_workers):
        _require_division(loader.dataset, wanted["num_workers"], wanted["worker_init_fn"])
    return with_settings(loader, wanted)


def _recommend(loader: DataLoader) -> dict[str, Any]:
    from gapless.loading.measure import diagnose

    advised = dict(diagnose(loader).recommended)
    return {name: value for name, value in advised.items() if name in SETTINGS and value is not None}


def _require_division(dataset: IterableDataset, workers: int, worker_init_fn: Any) -> None:
    """Raise if each worker would visibly yield everything."""
    if isinstance(dataset, Shard) or worker_init_fn is not None:
        return
    iterate = type(dataset).__iter__
    code = getattr(iterate, "__code__", None)
    if code is None or not is_user(code.co_filename):
        return  # a library's dataset: assumed to handle workers
    try:
        text = inspect.getsource(sys.modules[type(dataset).__module__])
    except (KeyError, OSError, TypeError):
        return
    if (
        "worker" not in text.replace("num_workers", "").replace("persistent_workers", "")
        and "shard" not in text
    ):
        raise UsageError(
            f"{type(dataset).__name__}.__iter__ ({short_path(code.co_filename)}:{code.co_firstlineno}) does "
            f"not check which worker it runs in: with num_workers={workers} every item would come {workers} "
            "times; pass gapless.loading.shard(dataset) to the loader"
        )
