"""GAP115."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._code import add_option, keyword
from gapless.rules._places import advise_for_library, bare_names, parse_waiting_line


class RepeatInterleave(WaitRule):
    """`repeat_interleave` with a tensor of repeats and no `output_size`: their sum must be known.

    ## What waits
    With a GPU tensor of repeats, the result has as many rows as the repeats add up to. Without
    `output_size` the CPU waits for that sum, and once more to see that no repeat is negative.

    ## Why it costs
    The code that created the repeats nearly always knows the length (a number of tokens, edges or nodes),
    so the sync gains nothing.

    ## Example
    ```python
    repeats = torch.full((8,), 3, device=device)
    rows = torch.repeat_interleave(x, repeats, dim=0)
    ```

    ## Use instead
    ```python
    repeats = torch.full((8,), 3, device=device)
    rows = torch.repeat_interleave(x, repeats, dim=0, output_size=24)
    ```
    `output_size` must be the exact sum, as a Python number. Where only an upper bound is known,
    `gapless.ops.repeat_interleave(x, repeats, dim=0, output_size=bound)` fills up the rest. The same
    number of repeats for all rows is `x.repeat_interleave(3, dim=0)`, which does not wait.

    ## When it is fine
    In set-up, such as building the index of a graph once.
    """

    code = "GAP115"
    name = "repeat-interleave"
    advice = (
        "pass `output_size=`, the sum of the repeats, as a number known on the CPU; if only a bound is "
        "known, `gapless.ops.repeat_interleave(..., output_size=bound)`"
    )
    change = "give `repeat_interleave` its `output_size=`"

    def matches(self, site: Site) -> bool:
        return "repeat_interleave" in bare_names(site)

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        call = code.only_call("repeat_interleave") if code is not None else None
        if code is None or call is None or keyword(call, "output_size") is not None:
            return advise_for_library(site, self.advice)
        whole = add_option(code, call, "output_size=n")
        if not whole or not (call.args or call.keywords):
            return self.advice
        return f"pass the length, known on the CPU: `{whole}`"
