"""GAP305."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gapless.model import Hit, LoaderRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis
from gapless.model.wording import count, duration, percent
from gapless.rules import _loader as loader

_LEAST = 20e6
"""Nanoseconds at the beginning of an epoch below which nothing is said."""
_NAMED = 0.05
"""A part of the whole below which it is not named."""


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
        found = _measured(use, use.diagnosis) if use.diagnosis is not None else _seen(use)
        if found is None:
            return
        epoch = found.step * found.steps
        stall = sum(found.parts.values())
        if stall < max(_LEAST, loader.MATTERS * (epoch + stall)):
            return
        told = [f"{duration(took)} {name}" for name, took in found.parts.items() if took >= _NAMED * stall]
        whole = (
            f"each epoch begins with {duration(stall)} of waiting in addition to its first batch: "
            f"{', '.join(told)}"
        )
        of_all = f"an epoch of {count(round(found.steps), 'step')} takes {duration(epoch)} without it"
        share = f"{of_all}: {percent(stall / (epoch + stall))} is spent starting"
        yield Hit(
            evidence=(whole, share),
            remedy="; ".join(found.remedies) or self.advice,
            change=found.change or _kept(use),
            idle=round(stall / found.steps),
            steps=1,
            every=max(round(found.steps), 1),
        )


class _Stall(NamedTuple):
    """What an epoch of `steps` begins with, by part, in nanoseconds; what helps, and by how much."""

    steps: float
    step: float
    parts: dict[str, float]
    remedies: list[str]

    @property
    def change(self) -> str:
        """What to do where it is not the workers' starting that takes the time."""
        longest = max(self.parts, key=lambda name: self.parts[name])
        return _CHANGES.get(longest, "")


def _kept(use: LoaderUse) -> str:
    """What to write so that workers stay: with other settings where they are to change as well."""
    if use.diagnosis is not None and _KEPT in loader.arguments(use.diagnosis):
        together = loader.settings_to_take(use)
        if together:
            return together
    return f"`{loader.worded(use.library, _KEPT)}`"


_KEPT = "persistent_workers=True"
_ORDER, _STREAM = "shuffling", "resetting the stream (opening files, filling its buffer)"
_CHANGES = {_ORDER: "shuffle in blocks, on the fly", _STREAM: "let one pass span several epochs"}


def _measured(use: LoaderUse, made: Diagnosis) -> _Stall | None:
    """By the measurement of the loader, for the setting it has."""
    now, begin, transfer, setting = made.now, made.begin, made.transfer, made.setting
    if now is None or (made.around is not None and made.around.foreign):
        return None
    parts: dict[str, float] = {}
    remedies: list[str] = []
    anew = setting.workers > 0 and not setting.persistent
    opened = begin.opened if anew else 0.0
    if anew and transfer.batches:
        starting = setting.workers * transfer.start + max(transfer.boot - begin.opened - begin.again, 0.0)
        workers = count(setting.workers, "worker")
        parts[f"starting {workers} ({made.machine.start or 'fork'})"] = starting
        if made.around is not None and made.around.anew:
            remedies.append("create the DataLoader once, not in each pass, with `persistent_workers=True`")
        else:
            saved, kept = duration(starting + opened), loader.worded(use.library, _KEPT)
            remedies.append(f"`{kept}` saves {saved} of it from the second epoch on")
        if 0 <= begin.forked < starting / 2:
            remedies.append(
                f'`multiprocessing_context="fork"` starts a worker in {duration(begin.forked)} instead of '
                f"{duration(transfer.start + transfer.boot)}, if no threads and no CUDA are in use by then"
            )
    parts["opening the dataset's files"] = opened
    parts[_STREAM] = begin.again
    parts[_ORDER] = begin.shuffle
    if begin.shuffle > max(_LEAST, opened):
        remedies.append(
            f"the sampler takes {duration(begin.shuffle)} to yield its first position: shuffle with one "
            "`torch.randperm`, or in blocks on the fly"
        )
    if begin.again > max(_LEAST, opened):
        remedies.append(
            f"the stream restarts in every pass ({duration(begin.again)}): let one pass span several "
            "epochs, or fill a smaller buffer"
        )
    per_step = use.per_step or 1.0  # what was predicted is for each batch
    each = made.around.batches if made.around is not None else 1.0
    return _Stall(made.length / each / per_step, now.step * per_step, parts, remedies)


def _seen(use: LoaderUse) -> _Stall | None:
    """By the run itself, of a loader that keeps up and was not measured further."""
    batch = use.fetch.cpu + use.fetch.wait if use.fetch is not None else 0.0
    if use.ended < 1 or not use.setting.workers or use.setting.persistent or not use.step.likely:
        return None
    stall = max(use.first - max(use.wait, batch), 0.0)
    workers = count(use.setting.workers, "worker")
    name = f"until {workers} {'has' if use.setting.workers == 1 else 'have'} started, as observed in this run"
    saves = f"`{loader.worded(use.library, _KEPT)}` avoids this from the second epoch on"
    steps = use.length / use.per_step if use.per_step else 0.0
    return _Stall(steps, float(use.step.likely), {name: stall}, [saves]) if steps else None
