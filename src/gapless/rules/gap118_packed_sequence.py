"""GAP118."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_FILE = "torch/nn/utils/rnn.py"


class PackedSequence(WaitRule):
    """Packing sequences with `enforce_sorted=False`, or unpacking them: their order is copied over.

    ## What waits
    `pack_padded_sequence(..., enforce_sorted=False)` sorts the lengths on the CPU and copies the order to
    the GPU. `pad_packed_sequence` copies the order back to the CPU to reorder the lengths. Both are
    blocking copies of a few bytes.

    ## Why it costs
    The second is the expensive one: it comes after the recurrent network, so the CPU waits for all of it,
    in each step.

    ## Example
    ```python
    packed = nn.utils.rnn.pack_padded_sequence(sequences, lengths_on_host, enforce_sorted=False)
    output, hidden = rnn(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(output)
    ```

    ## Use instead
    ```python
    packed = nn.utils.rnn.pack_padded_sequence(sequences, sorted_lengths)
    output, hidden = rnn(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(output)
    ```
    Sort the batch by length when it is collated, longest first: then nothing has to be sorted, in either
    direction. Where the order of the batch matters, keep the inverse order next to the batch and apply it
    on the GPU with `index_select`. The lengths must stay on the CPU: `lengths.cpu()` in the step is another
    sync.

    ## When it is fine
    Where the network takes so long that a sync per batch does not matter; but sorting in the collate
    function is free.
    """

    code = "GAP118"
    name = "packed-sequence"
    priority = 100
    advice = (
        "sort each batch by length in the collate function, longest first, and leave "
        "`enforce_sorted=True`: then no sort order has to be copied between CPU and GPU"
    )
    change = "sort each batch by length, keep `enforce_sorted=True`"

    def matches(self, site: Site) -> bool:
        return is_below(site, "torch", file=_FILE) and not any(
            is_below(site, "torch", name, _FILE) for name in ("to", "cuda", "cpu", "pin_memory")
        )
