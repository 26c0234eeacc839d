"""GAP503."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as told
from gapless.rules._profile import Spot

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
)
_OPERATOR = re.compile(r"^\w+::|Backward\d*$|^CompiledFunction|^Torch-Compiled")
_SAVING = ("torch/serialization.py", "serialization.py: save", "save_checkpoint", "pickle.py: dump")


class HostBusy(ProfileRule):
    """The CPU computes something else between launches, and the GPU is idle meanwhile.

    ## What waits
    The GPU has done all that was launched, and the CPU is at work on something of its own: Python,
    operators on CPU tensors, logging, a checkpoint, preparing data. It waits for nobody, so no call shows it.

    ## Why it costs
    All of it is added to the step. As long as the queue of the GPU is full, the same work is free.

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
    Work on data belongs into the dataset, where workers do it beside the training, or onto the GPU. What has
    to happen in the loop costs less every N steps, in another thread (if it leaves Python's lock), or right
    behind many launches, when the GPU has enough to do.

    ## When it is fine
    Once per epoch, and where the profiler's own recording of Python makes it look slow (GAP702).
    """

    code = "GAP503"
    name = "host-busy"
    advice = (
        "move this into the dataset, where workers do it, or onto the GPU; or do it every N steps only, or "
        "where much work has just been launched"
    )
    change = "take this CPU work out of the step"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        found = told.spots(profile, "host")
        if not told.matters(profile, found):
            return
        for spot in told.told(profile, found):
            busy = f"{spot.idle_for(profile)}, while the CPU does something else and launches nothing"
            yield spot.hit(profile, (busy, told.mostly(spot)), *(_remedy(profile, spot) or (self.advice,)))


def _remedy(profile: Profile, spot: Spot) -> tuple[str, ...]:
    """What to write instead, also in a few words; nothing where the general advice says all."""
    below = {frame.library for frame in spot.site.library_frames} if spot.site else set()
    if any(name in spot.words.lower() for name in told.COMPILING):
        return told.COMPILE_ONCE
    if any(name in spot.words for name in _SAVING):
        return (
            "save less often, or write it from another thread after a copy to the CPU "
            "(`torch.distributed.checkpoint.async_save`)",
            "save less often, or with `async_save`",
        )
    if told.first_only(profile, spot):
        return (
            "it happens in the first step only: leave that out of the profile "
            "(`torch.profiler.schedule(wait=5, warmup=2, active=3)`), and see whether it comes back",
            "leave the first steps out: `schedule(wait=5)`",
        )
    if below & _LOGGING:
        libraries = ", ".join(sorted(below & _LOGGING))
        return f"log every N steps: {libraries} is at work here", "log every N steps"
    if below & _DATA or any(name in spot.words for name in _DATA_FILES):
        return (
            "move this into the dataset, where workers do it beside the training, or do it on the GPU with "
            "torch's own operators",
            "move this work into the dataset's workers",
        )
    if "gc.collect" in spot.words:
        return (
            "leave `gc.collect()` out of the loop, or call it every N steps; `gc.freeze()` after the set-up "
            "makes collections short",
            "take `gc.collect()` out of the loop",
        )
    if _of_operators(spot):
        return (
            "an operator that keeps the CPU so long computes on CPU tensors, is compiled, or runs for the "
            "first time: move its tensors to the GPU, and record later steps",
            "move its tensors to the GPU, or record later steps",
        )
    return ()


def _of_operators(spot: Spot) -> bool:
    """Whether the CPU is mostly in operators of torch, not in Python between them."""
    inside = sum(cost.idle for cost in spot.costs if _OPERATOR.search(cost.site.operator))
    return 2 * inside > spot.idle
