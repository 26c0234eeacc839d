"""GAP503."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as profile_rules
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
_SLOW_LAUNCHES = (
    "operators that launch GPU work themselves keep the CPU busy this long in every step: launch less "
    '(`torch.compile(model, mode="reduce-overhead")` or CUDA graphs), and leave the process its own core '
    "if others use them all (loader workers, other jobs)",
    '`torch.compile(mode="reduce-overhead")`, or CUDA graphs',
)
"""Remedy and change, as all that follow."""
_OPERATOR = re.compile(r"^\w+::|Backward\d*$")
_COMPILED = re.compile(r"^(?:CompiledFunction|Torch-Compiled|TorchDynamo|AOTDispatcher|Pregraph bytecode)")
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
        for spot, remedy in _merge_by_remedy(profile, profile_rules.spots_to_report(profile, places)):
            busy = f"{spot.idle_for(profile)}, while the CPU does other work and launches nothing"
            yield spot.hit(
                profile, (busy, profile_rules.describe_main_places(spot)), *(remedy or (self.advice,))
            )


def _merge_by_remedy(profile: Profile, spots: list[CostSpot]) -> Iterator[tuple[CostSpot, tuple[str, ...]]]:
    """Yield the places with their remedies; places that one change of the whole step fixes are merged."""
    of_all: dict[tuple[str, ...], list[CostSpot]] = {}
    for spot in spots:
        remedy = _remedy(profile, spot)
        if remedy in (_SLOW_LAUNCHES, _FIRST_TIME, profile_rules.ONE_LAUNCH):
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
        return (
            "it happens only in the first step: exclude that step from the profile "
            "(`torch.profiler.schedule(wait=5, warmup=2, active=3)`), and see whether it comes back",
            "exclude the first steps: `schedule(wait=5)`",
        )
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
            return _SLOW_LAUNCHES if profile_rules.is_recurring(profile, spot) else _FIRST_TIME
        return (
            "an operator that keeps the CPU busy this long without launching anything computes on CPU "
            "tensors: move them to the GPU, or create them there (`device=`)",
            "move its CPU tensors to the GPU",
        )
    if profile_rules.is_unrecorded(spot):
        return (
            "the code that runs there is not in this profile: record a few steps with `with_stack=True`, "
            "and move it out of the step, or run it only every N steps",
            "find out with `with_stack=True` what the CPU does between operators",
        )
    if spot.site is None:
        return HostBusy.advice, f"take CPU work out of the step, {profile_rules.describe_main_places(spot)}"
    return ()
