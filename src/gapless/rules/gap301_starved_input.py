"""GAP301."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from gapless.model import Hit, LoaderRule, Profile, ProfileRule
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis
from gapless.model.wording import duration, percent
from gapless.rules import _loader as loader
from gapless.rules import _profile as profile_rules
from gapless.rules._profile import CostSpot

_IN_PROCESS_NAMES = ("_SingleProcessDataLoaderIter", "torch/utils/data/_utils/fetch.py")
"""Names that occur only where the training process makes the batches."""
_WORKER_NAMES = ("_MultiProcessingDataLoaderIter", "dataloader.py: _try_get_data", "dataloader.py: _get_data")
"""Names that occur only where workers make the batches."""
_MAX_WORKERS = 32
"""More workers are not advised: beyond, the batch itself must become cheaper."""


class StarvedInput(ProfileRule, LoaderRule):
    """The GPU is idle because the next batch is not ready.

    ## What waits
    The training loop asks the DataLoader for the next batch (`__next__`) and gets it late. The CPU launches
    nothing until then; the GPU finishes what was queued and goes idle.

    ## Why it costs
    With `num_workers=0` the training process makes every batch itself, between two steps: its whole time is
    added to each step. With workers, batches are made while the GPU computes, and a step takes the longer of
    two times: its own time, or the time of a batch divided by the number of workers that have a core to run
    on.

    ## Example
    ```python
    for inputs, labels in DataLoader(dataset, batch_size=64):
        train_step(inputs.to(device), labels.to(device))
    ```

    ## Use instead
    ```python
    loader = DataLoader(dataset, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)
    for inputs, labels in loader:
        train_step(inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True))

    # data in memory needs no worker if whole batches are indexed at once
    batches = BatchSampler(RandomSampler(dataset), 64, drop_last=False)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    ```
    `gapless loader` tries the latter, and tensors in place of lists of numbers, and advises either only if
    the batches are the same.

    You need as many workers as the time of a batch divided by that of the rest of a step, rounded up, if
    each has a core. With fewer cores, make the batch cheaper: decode and resize once and store the result,
    do per-sample work on the whole batch or on the GPU. If samples wait for a disk or a network, more
    workers than cores help.

    ## When it is fine
    In the first step of an epoch, while the workers start (`persistent_workers=True` keeps them for the next
    epoch), or where the whole run is short.
    """

    code = "GAP301"
    name = "starved-input"
    advice = (
        "make batches while the GPU computes: `DataLoader(..., num_workers=N, pin_memory=True, "
        "persistent_workers=True)`, and make batches cheaper if all cores are busy"
    )
    change = "make batches in workers: `num_workers=N`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = profile_rules.find_spots(profile, "input")
        if not profile_rules.is_significant(profile, places):
            return
        for spot in profile_rules.spots_to_report(profile, places):
            late = f"{spot.idle_for(profile)}, until the next batch arrives"
            yield spot.hit(profile, (late, *_evidence(profile, spot)), *_remedy(profile, spot, self.advice))

    def of_loader(self, use: LoaderUse) -> Iterator[Hit]:
        diagnosis, late, step = use.diagnosis, use.late, use.step
        if diagnosis is None or not loader.is_starving(use, diagnosis):
            return
        share = percent(late.likely / (step.likely + late.likely))
        origin = "" if step.least == step.most else "estimated, "  # a step that was given has no range
        waiting = (
            f"a step of {duration(step.likely)} ({origin}without its input) waits {duration(late.likely)} "
            f"for its batch with {loader.describe_setting(use.setting)}: {share}"
        )
        where = loader.describe_hottest_line(diagnosis)
        costs = loader.describe_cost(diagnosis) + (f"; {where}" if where else "")
        measured = (
            f"measured on this machine ({loader.describe_cores(diagnosis)}), predicted for the GPU's step"
        )
        evidence = (costs, waiting, measured)
        remedy, change = _advise_setting(use, diagnosis)
        yield Hit(evidence=evidence, remedy=remedy, change=change, idle=late.likely, steps=1)


def _advise_setting(use: LoaderUse, diagnosis: Diagnosis) -> tuple[str, str]:
    """Return the recommended setting, its gain, and what to do if it is not enough; and the same in short."""
    step, late, left = use.step.likely, use.late.likely, use.left.likely
    enough = left <= 2 * loader.MIN_SHARE_OF_STEP * (step + left)
    if not loader.is_better(use, diagnosis):
        return f"no setting keeps up on this machine: {loader.MAKE_CHEAPER}", loader.MAKE_CHEAPER
    remedy = diagnosis.remedy
    if remedy is not None:
        advice_text = "; ".join(loader.describe_remedy(diagnosis, remedy))
        code = loader.remedy_code(diagnosis, remedy)
        gain = f"a step then takes {duration(step + left)} instead of {duration(step + late)}"
        return f"{advice_text}: {gain}\n{code}", loader.settings_to_take(use)
    advice = (
        f"{loader.describe_call(use, diagnosis)}: a step then takes {duration(step + left)} instead of "
        f"{duration(step + late)}"
    )
    change = loader.short_recommendation(diagnosis, use.library)
    return (advice if enough else f"{advice}; for the rest, {loader.MAKE_CHEAPER}"), change


def _batch_maker(spot: CostSpot) -> str:
    """Return who makes the batches: ``itself``, ``workers`` or "" if the names do not say."""
    itself, workers = (
        any(name in spot.words for name in names) for names in (_IN_PROCESS_NAMES, _WORKER_NAMES)
    )
    return "" if itself == workers else "itself" if itself else "workers"


def _evidence(profile: Profile, spot: CostSpot) -> Iterator[str]:
    if _batch_maker(spot) == "itself":
        yield "`num_workers=0`: the training process makes every batch itself"
    elif _batch_maker(spot) == "workers":
        yield "batches come from workers, but later than they are needed"
    loading = _loading_time(profile)
    if loading > 0:
        yield f"the CPU spends {profile_rules.describe_time(profile, loading)}, in the loader"


def _loading_time(profile: Profile) -> int:
    return sum(phase.host for phase in profile.phases if phase.name == "loading")


def _remedy(profile: Profile, spot: CostSpot, advice: str) -> tuple[str, ...]:
    """Return what to write instead, also in a few words if more specific than the rule."""
    once = spot.steps == 1 and profile.steps.count >= 3
    if _batch_maker(spot) == "workers":
        if once:
            return (
                "one batch was late, like the first of an epoch while workers start: "
                "`persistent_workers=True` keeps the workers from one epoch to the next",
                "`persistent_workers=True`",
            )
        return (
            "the workers do not keep up: raise `num_workers` to the number of cores this process has (more "
            "if samples wait for a disk or a network), then make batches cheaper: store decoded and "
            "resized samples, or move the remaining transforms to the GPU",
            "raise `num_workers`, or make batches cheaper",
        )
    if _batch_maker(spot) != "itself" or once:
        return (advice,)
    call = "`DataLoader(..., num_workers=N, pin_memory=True, persistent_workers=True)`"
    needed, enough = _needed_workers(profile, spot)
    return call + enough, f"`num_workers={needed}, persistent_workers=True`" if needed else ""


def _needed_workers(profile: Profile, spot: CostSpot) -> tuple[int, str]:
    """Return how many workers keep up with the rest of a step (0: none would), and a sentence on it."""
    batch = profile_rules.per_step(profile, max(_loading_time(profile), spot.idle))
    rest = profile.steps.mean - batch
    needed = ceil(batch / rest) if rest > 0 else 0
    if not 0 < needed <= _MAX_WORKERS:
        return 0, ", and make batches cheaper, because they take nearly the whole step"
    keep = "1 worker can" if needed == 1 else f"{needed} workers can"
    each = "its own core" if needed == 1 else "one core each"
    return needed, (
        f": a batch takes {duration(batch)} and the rest of a step {duration(rest)}, so {keep} keep up "
        f"with {each}; use a few more, because batches differ"
    )
