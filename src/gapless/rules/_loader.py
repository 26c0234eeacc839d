"""Shared by the rules of loaders: describe what batches cost, and what to write."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.loader_use import LoaderUse
from gapless.model.loading import BatchRemedy, Diagnosis, Prediction, Setting
from gapless.model.wording import count, duration, number, percent

MIN_SHARE_OF_STEP = 0.05
"""A wait that takes less of a step is not reported."""
_MIN_WAIT_NS = 100_000
"""Nanoseconds per step below which a wait is not reported: asking any loader for a batch takes nearly as
long."""
_MIN_SHARE_OF_BATCH = 0.1
"""A part of a batch's time below this share is not named."""
_MIN_SHARE_OF_HOT_LINE = 0.2
"""A line with less of a batch's time is not the one to change."""
_MAX_UTILIZATION = 0.7
"""Share of a step: if workers need more of it for a batch, the loop waits for them at times."""
MAKE_CHEAPER = "make batches cheaper"
_MAX_ACTION_CHARS = 66
"""Characters of an entry in a list of things to do."""
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "prefetch_factor": (None, 2),
    "persistent_workers": (False,),
    "pin_memory": (False,),
}
"""Torch's defaults, which are not recommended again."""


_PREFIXES = {"transformers": "dataloader_", "skorch": "iterator_train__"}
"""Prefixes of DataLoader arguments in libraries that create the loader."""
_CALLS = {"transformers": "TrainingArguments({})", "skorch": "NeuralNet(..., {})"}


def word_for_library(library: str, words: str) -> str:
    """Write ``persistent_workers=True`` as `library` accepts it.

    >>> word_for_library("transformers", "num_workers=4, pin_memory=True")
    'dataloader_num_workers=4, dataloader_pin_memory=True'
    """
    return ", ".join(_PREFIXES.get(library, "") + word for word in words.split(", "))


def recommended_arguments(diagnosis: Diagnosis) -> str:
    """Return ``num_workers=4, pin_memory=True``: recommended arguments that are not torch's defaults."""
    return _format_arguments(diagnosis.recommended, diagnosis)


def advised_arguments(diagnosis: Diagnosis) -> str:
    """Return the arguments, as `recommended_arguments` does, of the advised setting, confirmed or not."""
    return _format_arguments(_setting_with(diagnosis, diagnosis.advised).arguments, diagnosis)


def remedy_arguments(diagnosis: Diagnosis, remedy: BatchRemedy) -> str:
    """Return the arguments, as `recommended_arguments` does, that are best with `remedy`."""
    return _format_arguments(_setting_with(diagnosis, remedy.advised).arguments, diagnosis)


def _setting_with(diagnosis: Diagnosis, prediction: Prediction | None) -> Setting:
    """Return the predicted setting, the loader's own if nothing was predicted."""
    return prediction.setting if prediction is not None else diagnosis.setting


def _format_arguments(advised: dict[str, int | bool | None], diagnosis: Diagnosis) -> str:
    # Pinning is kept: without a GPU nothing was measured that would speak against it.
    advised = {**advised, "pin_memory": advised.get("pin_memory") or diagnosis.setting.pin}
    settings = [
        f"{name}={value}"
        for name, value in advised.items()
        if name == "num_workers" or value not in _DEFAULTS.get(name, ())
    ]
    return ", ".join(settings)


def short_recommendation(diagnosis: Diagnosis, library: str = "") -> str:
    """Return the recommended settings, only the first ones if all are too long for a list of things to do."""
    shown = ""
    for word in word_for_library(library, recommended_arguments(diagnosis)).split(", "):
        longer = f"{shown}, {word}" if shown else word
        if shown and len(longer) + 2 > _MAX_ACTION_CHARS:
            break
        shown = longer
    return f"`{shown}`"


def remedy_change(diagnosis: Diagnosis, remedy: BatchRemedy) -> str:
    """Return `remedy` in a few words, with the number of workers if another is best with it."""
    workers = _setting_with(diagnosis, remedy.advised).workers
    return remedy.change + (f", `num_workers={workers}`" if workers != diagnosis.setting.workers else "")


def describe_remedy(diagnosis: Diagnosis, remedy: BatchRemedy) -> Iterator[str]:
    """Yield what `remedy` is and what it gains, and what else changes with it."""
    fetch = diagnosis.fetch
    yield (
        f"{remedy.change}: a batch then takes {duration(remedy.batch)} instead of "
        f"{duration(fetch.cpu + fetch.wait)}, best with {remedy_arguments(diagnosis, remedy)} "
        f"({number(remedy.compared)} compared)"
    )
    if remedy.differs:
        yield remedy.differs


def remedy_code(diagnosis: Diagnosis, remedy: BatchRemedy) -> str:
    """Return what to write for `remedy`, in lines."""
    return remedy.code_with(remedy_arguments(diagnosis, remedy))


def describe_cost(diagnosis: Diagnosis) -> str:
    """Return ``a batch takes 25.4 ms to make, 16.6 ms CPU time and 8.5 ms waiting for I/O``."""
    fetch = diagnosis.fetch
    total = fetch.cpu + fetch.wait
    text = f"a batch takes {duration(total)} to make"
    if fetch.wait < _MIN_SHARE_OF_BATCH * total:
        text += ", nearly all of it CPU time"
    elif fetch.cpu < _MIN_SHARE_OF_BATCH * total:
        text += f", nearly all of it {fetch.waiting}"
    else:
        text += f", {duration(fetch.cpu)} CPU time and {duration(fetch.wait)} {fetch.waiting}"
    collate = min(fetch.collate_cpu, fetch.cpu)
    return f"{text}, {duration(collate)} of it collating" if collate > 0.5 * total else text


def describe_hottest_line(diagnosis: Diagnosis) -> str:
    """Return ``62 % of its time at `x = f(y)` (data.py:33)``; "" if no line dominates."""
    for hot_line in diagnosis.hot[:1]:
        if hot_line.share >= _MIN_SHARE_OF_HOT_LINE:
            at = f"{_file_name(hot_line.line.file)}:{hot_line.line.line}"
            return f"{percent(hot_line.share)} of its time at `{hot_line.line.code}` ({at})"
    return ""


def _file_name(file: str) -> str:
    return file.replace("\\", "/").rsplit("/", 1)[-1]


def describe_setting(of: Setting) -> str:
    """Return ``num_workers=0``."""
    return f"num_workers={of.workers}"


def describe_cores(diagnosis: Diagnosis) -> str:
    """Return ``2 cores``, and how many of them this process got, if others used them."""
    cores, at = diagnosis.machine.cores, diagnosis.machine
    text = count(at.allowed, "core")
    return text if cores >= 0.8 * at.allowed else f"{text}, of which this process got {cores:.1f}"


def describe_call(use: LoaderUse, diagnosis: Diagnosis) -> str:
    """Return what to write, with the names of the library that creates the loader."""
    words = word_for_library(use.library, recommended_arguments(diagnosis))
    return f"`{_CALLS.get(use.library, 'DataLoader(..., {})').format(words)}`"


def is_behind(diagnosis: Diagnosis) -> bool:
    """Whether the loop waits for batches to be made, not only for finished ones to be handed over.

    Taking a batch from a worker costs the CPU a millisecond or two, in which it launches nothing, but more
    workers do not help, and a GPU with queued work does not notice.
    """
    now = diagnosis.now
    if now is None or not now.setting.workers:
        return True
    workers, work = now.setting.workers, diagnosis.fetch.cpu + diagnosis.transfer.send
    together = max(diagnosis.machine.share(workers), 0.01)
    made_every = max((work + diagnosis.fetch.wait) / workers, work / together)
    return made_every >= _MAX_UTILIZATION * now.step


def has_recommended(current: Setting, diagnosis: Diagnosis) -> bool:
    """Whether the loader already has the recommended setting, as far as it matters here."""
    return current.workers == _setting_with(diagnosis, diagnosis.advised).workers


def is_starving(use: LoaderUse, diagnosis: Diagnosis) -> bool:
    """Whether steps wait for batches to be made, long enough to report."""
    # The longest step within the estimate has the shortest wait, which must matter as well.
    enough = max(_MIN_WAIT_NS, MIN_SHARE_OF_STEP * (use.step.most + use.late.least))
    return use.late.least >= enough and is_behind(diagnosis)


def is_better(use: LoaderUse, diagnosis: Diagnosis) -> bool:
    """Whether the recommended setting differs from the present one and shortens the wait."""
    gains = use.left.likely < (1 - MIN_SHARE_OF_STEP) * use.late.likely
    return gains and (diagnosis.remedy is not None or not has_recommended(use.setting, diagnosis))


def settings_to_take(use: LoaderUse) -> str:
    """Return the change that ends a wait for batches, in short; "" if steps do not wait or none helps."""
    diagnosis = use.diagnosis
    if diagnosis is None or not is_starving(use, diagnosis) or not is_better(use, diagnosis):
        return ""
    if diagnosis.remedy is not None:
        return remedy_change(diagnosis, diagnosis.remedy)
    return short_recommendation(diagnosis, use.library)
