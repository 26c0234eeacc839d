"""GAP302."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration
from gapless.rules import _profile as profile_rules

_MIN_SHARE_OF_STEPS = 0.1
"""Below this share of the steps a second stream and its events are not worth their code."""


class CopyNotOverlapped(ProfileRule):
    """The batch is copied while no kernel runs, though both could run at the same time.

    ## What waits
    The GPU copies and computes with different hardware, but operations of one stream run one after the
    other: the first kernel of the step waits until its batch has arrived, and the copy of the next batch
    waits for the last kernel of this step.

    ## Why it costs
    The time of the copies is added to each step. On a second stream the next batch is copied while this one
    is computed.

    ## Example
    ```python
    for inputs, labels in loader:
        inputs = inputs.to(device, non_blocking=True)
        train_step(inputs, labels.to(device, non_blocking=True))
    ```

    ## Use instead
    ```python
    side = torch.cuda.Stream()


    def ahead(loader):
        waiting = None
        for batch in loader:
            with torch.cuda.stream(side):
                arrived = [tensor.to(device, non_blocking=True) for tensor in batch]
            if waiting is not None:
                yield waiting
            torch.cuda.current_stream().wait_stream(side)
            for tensor in arrived:
                tensor.record_stream(torch.cuda.current_stream())
            waiting = arrived
        if waiting is not None:
            yield waiting


    for inputs, labels in ahead(loader):
        train_step(inputs, labels)
    ```
    The batches must be in pinned memory (`pin_memory=True` in the DataLoader), or the CPU waits for each
    copy. Fewer bytes copy faster: images as `uint8`, converted to float on the GPU, take a quarter.

    ## When it is fine
    Where the copies are a small part of the step.
    """

    code = "GAP302"
    name = "copy-not-overlapped"
    advice = (
        "copy the next batch on a second stream, from pinned memory with `non_blocking=True`, while this "
        "one is computed (see `gapless rule GAP302`); copy fewer bytes: `uint8`, converted on the GPU"
    )
    change = "copy the next batch on a second stream"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        alone = profile.split.memcpy
        batches = sum(phase.device for phase in profile.phases if phase.name == "transfer")
        beside = profile.split.kernel + profile.split.communication  # what the copies could run beside
        if profile_rules.share_of_steps(profile, min(alone, batches, beside)) < _MIN_SHARE_OF_STEPS:
            return
        yield Hit(
            evidence=(
                f"only copies run on the GPU for {profile_rules.describe_time(profile, alone)}",
                f"copies to the GPU take {duration(profile_rules.per_step(profile, batches))} "
                f"{profile_rules.per_step_words(profile)}",
            ),
            remedy=self.advice,
            steps=profile.steps.count,
        )
