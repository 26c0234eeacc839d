"""What the rules over a loader share: what its batches cost, and what to write, in words."""

from __future__ import annotations

from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis, Setting
from gapless.model.wording import count, duration, percent

MATTERS = 0.05
"""A wait that takes less of a step is none to speak of."""
_LEAST = 100_000
"""Nanoseconds per step below which a wait is not told: asking any loader for a batch takes nearly as much."""
_PART = 0.1
"""A part of a batch below which it is not named."""
_HOT = 0.2
"""A line with less of a batch's time than this is not the one to change."""
_KEPT_BACK = 0.7
"""Part of a step: where workers need so much of it for a batch, the loop waits for them, at times."""
CHEAPER = "make batches cheaper"
_SHORT = 66
"""Characters of what stands in a list of things to do."""
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "prefetch_factor": (None, 2),
    "persistent_workers": (False,),
    "pin_memory": (False,),
}


_PREFIXES = {"transformers": "dataloader_", "skorch": "iterator_train__"}
"""What stands before a DataLoader's argument where a library that creates it takes it."""
_CALLS = {"transformers": "TrainingArguments({})", "skorch": "NeuralNet(..., {})"}


def worded(library: str, words: str) -> str:
    """``persistent_workers=True`` as `library` takes it, where it is known how.

    >>> worded("transformers", "num_workers=4, pin_memory=True")
    'dataloader_num_workers=4, dataloader_pin_memory=True'
    """
    return ", ".join(_PREFIXES.get(library, "") + word for word in words.split(", "))


def arguments(diagnosis: Diagnosis) -> str:
    """``num_workers=4, pin_memory=True``: what is recommended and is not torch's default."""
    # What is pinned now stays so: where there is no GPU nothing was measured that would speak against it.
    advised = {
        **diagnosis.recommended,
        "pin_memory": diagnosis.recommended.get("pin_memory") or diagnosis.setting.pin,
    }
    told = [
        f"{name}={value}"
        for name, value in advised.items()
        if name == "num_workers" or value not in _DEFAULTS.get(name, ())
    ]
    return ", ".join(told)


def change(diagnosis: Diagnosis, library: str = "") -> str:
    """The settings that are recommended, the first ones where all are too many for a list of things to do."""
    told = ""
    for one in worded(library, arguments(diagnosis)).split(", "):
        longer = f"{told}, {one}" if told else one
        if told and len(longer) + 2 > _SHORT:
            break
        told = longer
    return f"`{told}`"


def cost(diagnosis: Diagnosis) -> str:
    """``a batch takes 25.4 ms to make, 16.6 ms CPU time and 8.5 ms waiting for I/O``."""
    fetch = diagnosis.fetch
    total = fetch.cpu + fetch.wait
    told = f"a batch takes {duration(total)} to make"
    if fetch.wait < _PART * total:
        told += ", nearly all of it CPU time"
    elif fetch.cpu < _PART * total:
        told += f", nearly all of it {fetch.waiting}"
    else:
        told += f", {duration(fetch.cpu)} CPU time and {duration(fetch.wait)} {fetch.waiting}"
    collate = min(fetch.collate_cpu, fetch.cpu)
    return f"{told}, {duration(collate)} of it collating" if collate > 0.5 * total else told


def hottest(diagnosis: Diagnosis) -> str:
    """``62 % of its time at data.py:33``; "" where no line stands out."""
    for one in diagnosis.hot[:1]:
        if one.share >= _HOT:
            at = f"{_short(one.line.file)}:{one.line.line}"
            return f"{percent(one.share)} of its time at `{one.line.code}` ({at})"
    return ""


def _short(file: str) -> str:
    return file.replace("\\", "/").rsplit("/", 1)[-1]


def setting(of: Setting) -> str:
    """``num_workers=0``."""
    return f"num_workers={of.workers}"


def machine(diagnosis: Diagnosis) -> str:
    """``2 cores``; how much of them there was, where others had some of it."""
    cores, at = diagnosis.machine.cores, diagnosis.machine
    told = count(at.allowed, "core")
    return told if cores >= 0.8 * at.allowed else f"{told}, of which this process got {cores:.1f}"


def call(use: LoaderUse, diagnosis: Diagnosis) -> str:
    """What to write, in the words of the library that makes the loader."""
    words = worded(use.library, arguments(diagnosis))
    return f"`{_CALLS.get(use.library, 'DataLoader(..., {})').format(words)}`"


def behind(diagnosis: Diagnosis) -> bool:
    """Whether the loop waits for batches to be made, and not only for those that are there to be handed over.

    Taking a batch over from a worker takes the CPU a millisecond or two. It launches nothing meanwhile, but
    more workers are no help, and a GPU that has work does not notice.
    """
    now = diagnosis.now
    if now is None or not now.setting.workers:
        return True
    workers, work = now.setting.workers, diagnosis.fetch.cpu + diagnosis.transfer.send
    together = max(diagnosis.machine.share(workers), 0.01)
    made_every = max((work + diagnosis.fetch.wait) / workers, work / together)
    return made_every >= _KEPT_BACK * now.step


def same(one: Setting, diagnosis: Diagnosis) -> bool:
    """Whether the loader already has what is recommended, as far as it matters here."""
    advised = diagnosis.advised.setting if diagnosis.advised is not None else one
    return one.workers == advised.workers


def starves(use: LoaderUse, diagnosis: Diagnosis) -> bool:
    """Whether steps wait for batches to be made, for long enough to speak of."""
    # With the longest step that the estimate allows the wait is the shortest: then it must matter, too.
    enough = max(_LEAST, MATTERS * (use.step.most + use.late.least))
    return use.late.least >= enough and behind(diagnosis)


def helps(use: LoaderUse, diagnosis: Diagnosis) -> bool:
    """Whether what is recommended is another setting, and shortens the wait."""
    gains = use.left.likely < (1 - MATTERS) * use.late.likely
    return gains and not same(use.setting, diagnosis)


def settings_to_take(use: LoaderUse) -> str:
    """The settings that end a wait for batches, in short; "" where steps do not wait, or none helps."""
    made = use.diagnosis
    if made is None or not starves(use, made) or not helps(use, made):
        return ""
    return change(made, use.library)
