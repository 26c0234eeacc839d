"""GAP504."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as profile_rules
from gapless.rules._profile import CostSpot

_KINDS = {
    "launches": ("graphlaunch",),
    "captures": ("graphinstantiate", "streamendcapture", "streambegincapture", "graphexecupdate"),
    "loads": ("moduleload", "libraryload", "modulegetfunction", "librarygetkernel", "loaddata"),
    "compiles": profile_rules.COMPILER_NAMES,
}
"""Kinds of calls, by parts of their names in lower case."""
_REMEDIES = {
    "loads": (
        "the driver loads kernels on first use: run each shape once before training, or set "
        "`CUDA_MODULE_LOADING=EAGER`",
        "run each shape once first, or `CUDA_MODULE_LOADING=EAGER`",
    ),
    "compiles": profile_rules.COMPILE_ONCE,
    "captures": (
        "capture the graph once, before the loop, and copy new inputs into its static tensors",
        "capture the graph once, before the loop",
    ),
    "launches": (
        "launching the graph itself takes long: capture larger parts in fewer graphs, and launch the next "
        "graph before this one has finished",
        "capture larger parts in fewer graphs",
    ),
}


class LongDriverCall(ProfileRule):
    """The CPU is in a long driver or compiler call inside the step, and launches nothing.

    ## What waits
    A graph is captured, instantiated or launched, the driver loads the code of a kernel that is used for
    the first time, or `torch.compile` recompiles. The CPU stops there, and the GPU runs out of work.

    ## Why it costs
    Each of these belongs in the first steps. In a later step it means that something changed: a new
    shape, another dtype, another branch. It happens each time that changes.

    ## Example
    ```python
    step = torch.compile(train_step)
    for tokens in loader:
        step(tokens.to(device))
    ```

    ## Use instead
    ```python
    step = torch.compile(train_step)
    for tokens in loader:
        tokens = tokens.to(device)
        torch._dynamo.mark_dynamic(tokens, 1)
        step(tokens)
    ```
    - `TORCH_LOGS=recompiles` shows why something is recompiled. `mark_dynamic` compiles once for all
      sizes of a dimension; padding to a few sizes compiles once for each.
    - Capture a CUDA graph once and replay it; copy new inputs into its static tensors.
    - `CUDA_MODULE_LOADING=EAGER` loads all kernels when the program starts.

    ## When it is fine
    In the first steps.
    """

    code = "GAP504"
    name = "long-driver-call"
    advice = (
        "find what changes from step to step (a shape, a dtype, a branch): compile, capture and load in "
        "the first steps only"
    )
    change = "compile, capture and load in the first steps only"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = [
            spot
            for spot in profile_rules.find_spots(profile, "graph")
            # Loading and compiling once is the start of a run; launching graphs is what a step does.
            if not profile_rules.is_between_kernels(spot)
            and (
                profile_rules.is_recurring(profile, spot)
                or (profile.steps.count == 1 and _call_kind(spot) == "launches")
            )
        ]
        if not profile_rules.is_significant(profile, places):
            return
        for spot in profile_rules.spots_to_report(profile, places):
            held = f"{spot.idle_for(profile)}, while the CPU is in a driver call or a compiler"
            yield spot.hit(
                profile,
                (held, profile_rules.describe_calls(profile, spot)),
                *_REMEDIES.get(_call_kind(spot), (self.advice,)),
            )


def _call_kind(spot: CostSpot) -> str:
    """Return the kind of call: ``loads``, ``compiles``, ``captures``, ``launches`` or ""."""
    text = spot.words.lower()
    return next((kind for kind, names in _KINDS.items() if any(name in text for name in names)), "")
