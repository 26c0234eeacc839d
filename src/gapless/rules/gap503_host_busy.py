"""GAP503."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gapless.model import NOTHING, Cost, Hit, Profile, ProfileRule, Site, Stack
from gapless.rules import _profile as profile_rules
from gapless.rules._optimizers import ZEROING, optimizer_part, optimizer_remedy
from gapless.rules._places import posix_path
from gapless.rules._profile import CostSpot

_LOGGING = {
    "aim", "clearml", "comet_ml", "logging", "loguru", "mlflow", "neptune", "rich", "tensorboard",
    "tensorboardX", "tqdm", "wandb",
}  # fmt: skip
_DATA = {
    "albumentations",
    "cv2",
    "datasets",
    "imageio",
    "librosa",
    "numpy",
    "pandas",
    "PIL",
    "skimage",
    "tokenizers",
}
_DATA_FILES = (
    "torchvision/transforms/",
    "torchvision/io/",
    "torchvision/datasets/",
    "torchaudio/transforms/",
    "transformers/image_",
    "transformers/video_",
    "transformers/feature_extraction",
    "transformers/tokenization",
)
_FIRST_TIME = (
    "operators that launch GPU work themselves keep the CPU busy this long when they run for the first "
    "time (kernels are loaded or compiled, algorithms searched): record later steps "
    "(`torch.profiler.schedule(wait=5, warmup=2, active=3)`), and see whether it comes back",
    "record later steps: `schedule(wait=5, warmup=2)`",
)
_FIRST_STEP = (
    "it happens only in the first step: exclude that step from the profile "
    "(`torch.profiler.schedule(wait=5, warmup=2, active=3)`), and see whether it comes back",
    "exclude the first steps: `schedule(wait=5)`",
)
_SLOW_LAUNCHES = (
    "operators that launch GPU work themselves keep the CPU busy this long in every step: launch less "
    '(`torch.compile(model, mode="reduce-overhead")` or CUDA graphs), and leave the process its own core '
    "if others use them all (loader workers, other jobs)",
    profile_rules.LAUNCH_LESS,
)
_NOT_AGAIN = (
    "it does not recur in every step, though training had warmed up: other programs used this CPU (record "
    "again when it is quiet), or the warm-up takes longer (`gapless profile --wait 20`)",
    f"{NOTHING}: it does not recur in every step",
)
_ENGINE = (
    "autograd starts each node of the backward pass on the CPU: fewer, larger operators have fewer nodes "
    '(`torch.compile(model, mode="reduce-overhead")` or CUDA graphs)',
    profile_rules.LAUNCH_LESS,
)
_AROUND_OPERATORS = (
    "this is PyTorch's own work around its operators (modules, functions, checks of arguments), paid again "
    'for each call: launch less (`torch.compile(model, mode="reduce-overhead")` or CUDA graphs)',
    profile_rules.LAUNCH_LESS,
)
_ZEROING = (
    "`zero_grad` drops the gradients of one parameter after the other, and launches nothing: the GPU is "
    "idle here because its queue is empty, for which other findings name the reason",
    f"{NOTHING}: `zero_grad` launches nothing",
)
_BATCH_MADE_HERE = (
    "the DataLoader makes the batch in this process: `num_workers=4, persistent_workers=True` makes the next "
    "ones while the GPU works",
    "make batches in workers: `DataLoader(num_workers=4)`",
)
_BATCH_TAKEN = (
    "the DataLoader takes a batch from its workers here: a batch of few, large tensors takes less time than "
    "one of many small ones",
    f"{NOTHING}: the DataLoader takes a batch from workers",
)
_HOOK = (
    "a hook of a module runs here at each call of it: remove it (`handle.remove()`), or register it only for "
    "the steps that need it",
    "remove the module's hook, or register it every N steps",
)
_PROFILER = (
    "the profiler itself works here: training without it does not",
    f"{NOTHING}: the profiler works here",
)
"""Remedy and change, as all that follow."""
_ENGINE_WORK = re.compile(r"^autograd::engine::|_EngineBase\.run_backward$")
_LOADER_WORK = re.compile(r"torch/utils/data/|^enumerate\(DataLoader\)", re.MULTILINE)
_MAKES_BATCH = re.compile(r"_SingleProcessDataLoaderIter|torch/utils/data/_utils/(?:fetch|collate)\.py")
_TORCH_CALL = re.compile(r"(?:torch|Tensor|_C|_nn)\.\w+$")
_OPERATOR = re.compile(r"^\w+::|Backward\d*$")
_COMPILED = re.compile(r"^(?:CompiledFunction|Torch-Compiled|TorchDynamo|AOTDispatcher|Pregraph bytecode)")
_FORWARD = re.compile(r"forward|wrap|decorat")
"""Names of a `forward` or, as libraries replace them, of what stands in its place."""
_SAVING = ("torch/serialization.py", "serialization.py: save", "save_checkpoint", "pickle.py: dump")


class HostBusy(ProfileRule):
    """The CPU does other work between launches, and the GPU is idle meanwhile.

    ## What waits
    The GPU has finished everything that was launched, and the CPU is busy with other work: Python, operators
    on CPU tensors, logging, a checkpoint, preparing data. It waits for nothing, so no call shows it.

    ## Why it costs
    All of it is added to the step. While the GPU's queue is full, the same work is free.

    ## Example
    ```python
    for step, (inputs, labels) in enumerate(loader):
        mixed = torch.from_numpy(mix(inputs.numpy())).to(device)
        train_step(mixed, labels.to(device))
    ```

    ## Use instead
    ```python
    class Mixed(torch.utils.data.Dataset):
        def __getitem__(self, index):
            inputs, label = samples[index]
            return torch.from_numpy(mix(inputs.numpy())), label


    for step, (inputs, labels) in enumerate(DataLoader(Mixed(), batch_size=64, num_workers=8)):
        train_step(inputs.to(device), labels.to(device))
    ```
    Data processing belongs in the dataset, where workers do it in parallel with training, or on the GPU.
    Work that has to happen in the loop costs less every N steps, in another thread (if it releases Python's
    global lock), or right after many launches, when the GPU has enough to do.

    ## When it is fine
    Once per epoch, and where the profiler's own recording of Python makes it look slow (GAP702).
    """

    code = "GAP503"
    name = "host-busy"
    advice = (
        "move this into the dataset, where workers do it, or to the GPU; or do it only every N steps, or "
        "right after launching a lot of work"
    )
    change = "take this CPU work out of the step"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = profile_rules.find_spots(profile, "host")
        if not profile_rules.is_significant(profile, places):
            return
        by_work = list(_split_by_work(profile, places))
        elsewhere = [spot for spot, remedy in by_work if not remedy]
        hits = [(spot, remedy) for spot, remedy in by_work if remedy]
        hits += [
            (spot, _remedy(profile, spot))
            for spot in profile_rules.spots_to_report(profile, elsewhere)
            if spot.costs
        ]
        for spot, remedy in _merge_by_remedy(hits):
            busy = f"{spot.idle_for(profile)}, while the CPU does other work and launches nothing"
            yield spot.hit(
                profile, (busy, profile_rules.describe_main_places(spot)), *(remedy or (self.advice,))
            )


def _split_by_work(profile: Profile, places: list[CostSpot]) -> Iterator[tuple[CostSpot, tuple[str, ...]]]:
    """Yield the parts of PyTorch that keep the CPU busy, each with its own remedy, then the other places
    with ().

    A line such as ``optimizer.step()`` is one place with several of them. A small part is left in its place.
    """
    by_remedy: dict[tuple[str, ...], list[Cost]] = {}
    for spot in places:
        for cost in spot.costs:
            by_remedy.setdefault(_work_remedy(cost), []).append(cost)
    rest = by_remedy.pop((), [])
    for remedy, costs in by_remedy.items():
        spots = profile_rules.spots_of(costs)
        if (
            profile_rules.share_of_steps(profile, profile_rules.total_idle(spots))
            < profile_rules.MIN_SHARE_OF_PLACE
        ):
            rest += costs
            continue
        merged = profile_rules.merge_spots(spots)
        of_every_step = remedy[-1] == profile_rules.LAUNCH_LESS and profile.recording.by_gapless
        recurs = not of_every_step or profile_rules.is_recurring(profile, merged)
        yield merged, remedy if recurs else _NOT_AGAIN
    for spot in profile_rules.spots_of(rest):
        yield spot, ()


def _work_remedy(cost: Cost) -> tuple[str, ...]:
    """Return the remedy of the part of PyTorch that keeps the CPU busy; () if it is other code."""
    site = cost.site
    words = CostSpot(None, (cost,)).words
    frames = site.library_frames
    if _ENGINE_WORK.search(site.operator):
        return _ENGINE
    if _is_other_work(site, words) or _OPERATOR.search(site.operator):
        return ()
    if any("torch/profiler/" in posix_path(frame) for frame in frames):
        return _PROFILER
    part = optimizer_part(words)
    if part is not None:
        return _ZEROING if part == ZEROING else optimizer_remedy(part)
    if _LOADER_WORK.search(words):
        return _BATCH_MADE_HERE if _MAKES_BATCH.search(words) else _BATCH_TAKEN
    if _is_hook(site.stack):
        return _HOOK
    is_torch = bool(frames) and frames[0].library == "torch"
    return _AROUND_OPERATORS if is_torch or _TORCH_CALL.match(site.operator) else ()


def _is_other_work(site: Site, words: str) -> bool:
    """Whether a remedy of the place itself fits better: compiling, saving, logging, preparing data."""
    below = {frame.library for frame in site.library_frames}
    return (
        bool(below & (_LOGGING | _DATA))
        or any(name in words for name in (*_DATA_FILES, *_SAVING, "gc.collect"))
        or any(name in words.lower() for name in profile_rules.COMPILER_NAMES)
        or profile_rules.is_compiled(CostSpot(None, (Cost(cause="host", site=site, idle=1),)))
        or bool(_COMPILED.search(site.operator))
    )


def _is_hook(stack: Stack) -> bool:
    """Whether a module calls something other than a `forward` here, as it does with its hooks."""
    if len(stack) < 2:
        return False
    callee, caller = stack[:2]
    if "torch/utils/hooks.py" in posix_path(caller):
        return True
    return (
        posix_path(caller).endswith("torch/nn/modules/module.py")
        and caller.function == "inner"
        and callee.library != "torch"
        and not _FORWARD.search(callee.function.rpartition(".")[2])
    )


def _merge_by_remedy(
    hits: Iterable[tuple[CostSpot, tuple[str, ...]]],
) -> Iterator[tuple[CostSpot, tuple[str, ...]]]:
    """Yield the places with their remedies; places that one change of the whole step fixes are merged."""
    of_all: dict[tuple[str, ...], list[CostSpot]] = {}
    for spot, remedy in hits:
        if remedy in (_SLOW_LAUNCHES, _FIRST_TIME, _NOT_AGAIN, profile_rules.ONE_LAUNCH):
            of_all.setdefault(remedy, []).append(spot)
        else:
            yield spot, remedy
    for remedy, places in of_all.items():
        yield profile_rules.merge_spots(places), remedy


def _remedy(profile: Profile, spot: CostSpot) -> tuple[str, ...]:
    """Return what to write instead, also in a few words; () if the general advice suffices."""
    below = {frame.library for frame in spot.site.library_frames} if spot.site else set()
    if any(name in spot.words.lower() for name in profile_rules.COMPILER_NAMES):
        return profile_rules.COMPILE_ONCE
    if any(name in spot.words for name in _SAVING):
        return (
            "save less often, or write it from another thread after a copy to the CPU "
            "(`torch.distributed.checkpoint.async_save`)",
            "save less often, or with `async_save`",
        )
    if profile_rules.is_first_step_only(profile, spot):
        return _NOT_AGAIN if profile.recording.by_gapless else _FIRST_STEP
    if below & _LOGGING:
        libraries = ", ".join(sorted(below & _LOGGING))
        return f"log every N steps: {libraries} runs here", "log every N steps"
    if below & _DATA or any(name in spot.words for name in _DATA_FILES):
        return (
            "move this into the dataset, where workers do it in parallel with training, or do it on the "
            "GPU with torch's own operators",
            "move this work into the dataset's workers",
        )
    if "gc.collect" in spot.words:
        return (
            "remove `gc.collect()` from the loop, or call it every N steps; `gc.freeze()` after set-up "
            "makes collections short",
            "remove `gc.collect()` from the loop",
        )
    if profile_rules.is_mostly_in(spot, _COMPILED):
        return (
            "compiled code starts here: its guards are checked and its inputs prepared before it launches. "
            "Fewer, larger regions cost less (`TORCH_LOGS=graph_breaks` shows where they end)",
            "compile fewer, larger regions: `TORCH_LOGS=graph_breaks`",
        )
    if profile_rules.is_compiled(spot):
        return profile_rules.ONE_LAUNCH
    if profile_rules.is_mostly_in(spot, _OPERATOR):
        if 2 * sum(cost.launching for cost in spot.costs) > spot.idle:
            rarely = _NOT_AGAIN if profile.recording.by_gapless else _FIRST_TIME
            return _SLOW_LAUNCHES if profile_rules.is_recurring(profile, spot) else rarely
        return (
            "an operator that keeps the CPU busy this long without launching anything computes on CPU "
            "tensors: move them to the GPU, or create them there (`device=`)",
            "move its CPU tensors to the GPU",
        )
    if profile_rules.is_unrecorded(spot):
        return (
            "the code that runs there is not in this profile: record a few steps with `with_stack=True`, "
            "and move it out of the step, or run it only every N steps",
            "record with `with_stack=True` what the CPU does there",
        )
    if spot.site is None:
        return HostBusy.advice, f"take CPU work out of the step, {profile_rules.describe_main_places(spot)}"
    return ()
