"""GAP503."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, Rule
from gapless.rules import _profile as told
from gapless.rules._profile import Spot

_LOGGING = {
    "aim", "clearml", "comet_ml", "logging", "loguru", "mlflow", "neptune", "rich", "tensorboard",
    "tensorboardX", "tqdm", "wandb",
}  # fmt: skip
_DATA = {
    "albumentations", "cv2", "datasets", "imageio", "librosa", "numpy", "pandas", "PIL", "scipy", "skimage",
    "sklearn", "tokenizers", "torchaudio", "torchvision",
}  # fmt: skip
_SAVING = ("torch/serialization.py", "serialization.py: save", "save_checkpoint", "pickle.py: dump")


class HostBusy(Rule):
    """The host computes something else between launches, and the GPU is idle meanwhile.

    ## What waits
    The GPU has done all that was launched, and the host is at work on something of its own: Python,
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

    def find(self, profile: Profile) -> Iterator[Hit]:
        found = told.spots(profile, "host")
        if not told.matters(profile, found):
            return
        for spot in told.told(profile, found) or [told.together(found)]:
            busy = f"{spot.idle_for(profile)}, while the host does something else and launches nothing"
            yield spot.hit(profile, (busy, _what(spot)), _remedy(spot, self.advice))


def _what(spot: Spot) -> str:
    """What the host does there, by the names that lose most."""
    idle: dict[str, int] = {}
    for cost in spot.costs:
        name = cost.site.call or cost.site.operator
        if name:
            idle[name] = idle.get(name, 0) + cost.idle
    largest = sorted(idle, key=lambda name: -idle[name])[:3]
    return f"it is in {', '.join(largest)}" if largest else ""


def _remedy(spot: Spot, advice: str) -> str:
    if spot.site is None:
        return advice
    below = {frame.library for frame in spot.site.library_frames}
    text = "\n".join(spot.words).replace("\\", "/")
    if any(part in text for part in _SAVING):
        return (
            "save less often, or copy the state to pinned memory and write it from another thread "
            "(`torch.distributed.checkpoint.async_save`)"
        )
    if below & _LOGGING:
        return f"log every N steps: {', '.join(sorted(below & _LOGGING))} works here in each step"
    if below & _DATA:
        return (
            "move this into the dataset, where workers do it beside the training, or do it on the GPU with "
            "torch's own operators"
        )
    if "gc.collect" in text:
        return (
            "leave `gc.collect()` out of the loop, or call it every N steps; `gc.freeze()` after the set-up "
            "makes collections short"
        )
    return advice
