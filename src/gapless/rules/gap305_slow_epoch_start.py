"""GAP305."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis
from gapless.model.wording import count, duration, percent
from gapless.rules import _loader as loader

_MIN_STALL_NS = 20e6
"""Nanoseconds at the start of an epoch below which nothing is reported."""
_MIN_SHARE_TO_NAME = 0.05
"""Parts below this share of the whole are not named."""


class SlowEpochStart(LoaderRule):
    """Each epoch begins with a stall: workers start, files are opened, the order is shuffled.

    ## What waits
    The first batch of an epoch. Nothing was prefetched: the workers of the last epoch have ended, and new
    ones start, import what they need and open their files; a stream reopens its shards and fills its
    shuffle buffer; a sampler shuffles all positions.

    ## Why it costs
    The GPU is idle for all of it, in every epoch. Where epochs are short (small datasets, many evaluations)
    it can be most of the time. Starting a worker takes a few hundredths of a second with fork, one or two
    seconds with forkserver (the default from Python 3.14 on) or spawn.

    ## Example
    ```python
    loader = DataLoader(dataset, batch_size=64, num_workers=8)
    for epoch in range(100):
        for batch in loader:
            train_step(batch)
    ```

    ## Use instead
    ```python
    loader = DataLoader(dataset, batch_size=64, num_workers=8, persistent_workers=True)
    ```
    Persistent workers keep their dataset, and the files it has opened, from one epoch to the next. A stream
    still restarts: let one pass span several epochs. If workers do not start with fork,
    `multiprocessing_context="fork"` is faster if nothing else runs in the process at that time (no CUDA, no
    threads); otherwise `multiprocessing.set_forkserver_preload([...])` imports once what each worker
    otherwise imports itself. `prefetch_factor` does not help: it applies only once the workers run.

    ## When it is fine
    Where epochs are long, or there is only one.
    """

    code = "GAP305"
    name = "slow-epoch-start"
    advice = (
        "`DataLoader(..., persistent_workers=True)` keeps workers, and the files they have opened, from one "
        "epoch to the next"
    )
    change = "`persistent_workers=True`"

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        if use.restarted or use.length <= 0:
            return
        epoch_start = _from_measurement(use, use.diagnosis) if use.diagnosis is not None else _from_run(use)
        if epoch_start is None:
            return
        epoch = epoch_start.step * epoch_start.steps
        stall = sum(epoch_start.parts.values())
        if stall < max(_MIN_STALL_NS, loader.MIN_SHARE_OF_STEP * (epoch + stall)):
            return
        parts = [
            f"{duration(took)} {name}"
            for name, took in epoch_start.parts.items()
            if took >= _MIN_SHARE_TO_NAME * stall
        ]
        whole = (
            f"each epoch begins with {duration(stall)} of waiting in addition to its first batch: "
            f"{', '.join(parts)}"
        )
        of_all = f"an epoch of {count(round(epoch_start.steps), 'step')} takes {duration(epoch)} without it"
        share = f"{of_all}: {percent(stall / (epoch + stall))} is spent starting"
        yield Hit(
            evidence=(whole, share),
            remedy="; ".join(epoch_start.remedies) or self.advice,
            change=epoch_start.change or _advise_persistent(use),
            idle=round(stall / epoch_start.steps),
            steps=1,
            every=max(round(epoch_start.steps), 1),
        )


class _EpochStart(NamedTuple):
    """Time before the first batch of an epoch of `steps`, by part, in nanoseconds, and the remedies."""

    steps: float
    step: float
    parts: dict[str, float]
    remedies: list[str]

    @property
    def change(self) -> str:
        """The change in a few words, if starting workers is not what takes longest."""
        longest = max(self.parts, key=lambda name: self.parts[name])
        return _CHANGES.get(longest, "")


def _advise_persistent(use: LoaderUse) -> str:
    """Return what to write so that workers persist, with other settings if those should change as well."""
    if use.diagnosis is not None and _PERSISTENT in loader.recommended_arguments(use.diagnosis):
        together = loader.settings_to_take(use)
        if together:
            return together
    return f"`{loader.word_for_library(use.library, _PERSISTENT)}`"


_PERSISTENT = "persistent_workers=True"
_ORDER, _STREAM = "shuffling", "resetting the stream (opening files, filling its buffer)"
_CHANGES = {_ORDER: "shuffle in blocks, on the fly", _STREAM: "let one pass span several epochs"}


def _from_measurement(use: LoaderUse, diagnosis: Diagnosis) -> _EpochStart | None:
    """Return the start of an epoch by the measurement of the loader, for its present setting."""
    now, begin, transfer, setting = diagnosis.now, diagnosis.begin, diagnosis.transfer, diagnosis.setting
    if now is None or (diagnosis.around is not None and diagnosis.around.foreign):
        return None
    parts: dict[str, float] = {}
    remedies: list[str] = []
    anew = setting.workers > 0 and not setting.persistent
    opened = begin.opened if anew else 0.0
    if anew and transfer.batches:
        starting = setting.workers * transfer.start + max(transfer.boot - begin.opened - begin.again, 0.0)
        workers = count(setting.workers, "worker")
        parts[f"starting {workers} ({diagnosis.machine.start or 'fork'})"] = starting
        if diagnosis.around is not None and diagnosis.around.anew:
            remedies.append("create the DataLoader once, not in each pass, with `persistent_workers=True`")
        else:
            saved, kept = duration(starting + opened), loader.word_for_library(use.library, _PERSISTENT)
            remedies.append(f"`{kept}` saves {saved} of it from the second epoch on")
        if 0 <= begin.forked < starting / 2:
            remedies.append(
                f'`multiprocessing_context="fork"` starts a worker in {duration(begin.forked)} instead of '
                f"{duration(transfer.start + transfer.boot)}, if no threads and no CUDA are in use by then"
            )
    parts["opening the dataset's files"] = opened
    parts[_STREAM] = begin.again
    parts[_ORDER] = begin.shuffle
    if begin.shuffle > max(_MIN_STALL_NS, opened):
        remedies.append(
            f"the sampler takes {duration(begin.shuffle)} to yield its first position: shuffle with one "
            "`torch.randperm`, or in blocks on the fly"
        )
    if begin.again > max(_MIN_STALL_NS, opened):
        remedies.append(
            f"the stream restarts in every pass ({duration(begin.again)}): let one pass span several "
            "epochs, or fill a smaller buffer"
        )
    per_step = use.per_step or 1.0  # what was predicted is for each batch
    each = diagnosis.around.batches if diagnosis.around is not None else 1.0
    return _EpochStart(diagnosis.length / each / per_step, now.step * per_step, parts, remedies)


def _from_run(use: LoaderUse) -> _EpochStart | None:
    """Return the start of an epoch as observed in the run, for a loader that keeps up and was not
    measured."""
    batch = use.fetch.cpu + use.fetch.wait if use.fetch is not None else 0.0
    if use.ended < 1 or not use.setting.workers or use.setting.persistent or not use.step.likely:
        return None
    stall = max(use.first - max(use.wait, batch), 0.0)
    workers = count(use.setting.workers, "worker")
    name = f"until {workers} {'has' if use.setting.workers == 1 else 'have'} started, as observed in this run"
    saves = f"`{loader.word_for_library(use.library, _PERSISTENT)}` avoids this from the second epoch on"
    steps = use.length / use.per_step if use.per_step else 0.0
    return _EpochStart(steps, float(use.step.likely), {name: stall}, [saves]) if steps else None
