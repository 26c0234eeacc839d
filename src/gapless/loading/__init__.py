"""Measure, predict and feed the input pipeline. Names are imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.loading.bucket import BucketBatchSampler as BucketBatchSampler
    from gapless.loading.correctness import verify as verify
    from gapless.loading.measure import diagnose as diagnose
    from gapless.loading.padding import Padded as Padded
    from gapless.loading.padding import pad_collate as pad_collate
    from gapless.loading.padding import pad_to_multiple as pad_to_multiple
    from gapless.loading.padding import pad_to_power_of_two as pad_to_power_of_two
    from gapless.loading.prefetch import DevicePrefetcher as DevicePrefetcher
    from gapless.loading.sharding import shard as shard
    from gapless.loading.timing import timed as timed
    from gapless.loading.tuning import tune as tune
    from gapless.loading.watching import watch as watch

_HOMES = {
    "measure": ("diagnose",),
    "timing": ("timed",),
    "bucket": ("BucketBatchSampler",),
    "correctness": ("verify",),
    "padding": ("Padded", "pad_collate", "pad_to_multiple", "pad_to_power_of_two"),
    "prefetch": ("DevicePrefetcher",),
    "sharding": ("shard",),
    "tuning": ("tune",),
    "watching": ("watch",),
}
"""The modules of this package and the public names in each; no module has a public name."""

_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'gapless.loading' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gapless.loading.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
