"""GAP806."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model.race import Race
from gapless.rules._races import KindRule, describe_line


class GeneratorSharedByThreads(KindRule):
    """Two threads draw random numbers from one generator at the same time: different numbers in every run.

    ## What waits
    Nothing, and that is the mistake. Each draw takes the next numbers of the generator; which thread comes
    first depends on scheduling. Without their own generators, all threads draw from the GPU's default one.

    ## Why it costs
    The seed does not make a run repeatable: dropout masks, noise and augmentations differ from run to run.
    Comparisons with an earlier run, or runs resumed from a checkpoint, differ for no visible reason.

    ## Example
    ```python
    import threading

    generator = torch.Generator(device="cuda").manual_seed(0)

    def augment():
        for _ in range(1000):
            torch.rand(8, device="cuda", generator=generator)

    thread = threading.Thread(target=augment)
    thread.start()
    augment()
    thread.join()
    ```

    ## Use instead
    ```python
    import threading

    def augment(seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        for _ in range(1000):
            torch.rand(8, device="cuda", generator=generator)

    thread = threading.Thread(target=augment, args=(1,))
    thread.start()
    augment(2)
    thread.join()
    ```
    A lock does not help: it separates the draws but does not order them.

    ## When it is fine
    If nobody needs the same numbers again. Draws from a default generator that the script has not seeded
    are not reported, nor are those of threads that take turns."""

    code = "GAP806"
    name = "generator-shared-by-threads"
    kind = "generator"
    advice = "give each thread its own generator: `torch.Generator(device='cuda').manual_seed(seed)`"
    change = "give each thread its own generator"

    def evidence(self, race: Race) -> Iterator[str]:
        yield f"{describe_line(race.earlier.line)} draws from a generator in one thread ({race.earlier.what})"
        yield (
            f"{describe_line(race.later.line)} draws from it in another, at the same time ({race.later.what})"
        )

    def wrong(self, race: Race) -> str:
        return "here too, each thread gets different numbers in every run despite the seed"
