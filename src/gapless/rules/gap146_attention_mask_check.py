"""GAP146."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import is_below

_FILES = ("transformers/masking_utils.py", "transformers/modeling_attn_mask_utils.py")


class AttentionMaskCheck(WaitRule):
    """A Hugging Face model checks in each forward pass whether the attention mask masks anything.

    ## What waits
    With `attn_implementation="sdpa"`, which is the default, transformers drops the mask if it is all ones,
    so that a faster kernel can be used. To find out, it reads `attention_mask.all()` on the CPU. With
    position ids and no mask, it checks in a similar way whether several sequences are packed into one row.

    ## Why it costs
    The check is at the start of the forward pass, so the CPU waits for whatever is queued: the rest of
    the previous step. The launches of two steps no longer overlap.

    ## Example
    ```python
    output = language_model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    ```

    ## Use instead
    ```python
    output = language_model(input_ids=tokens)
    ```
    Batches without padding need no mask: omit it. For padded batches, create the mask that attention needs,
    with shape (batch, 1, queries, keys), together with the batch: a mask with four dimensions is used as it
    is. In causal models with padding on the right, labels of -100 already keep padding out of the loss.

    ## When it is fine
    Where most batches have no padding and the faster kernel saves more than the sync costs: measure both.
    """

    code = "GAP146"
    name = "attention-mask-check"
    priority = 100
    advice = (
        "omit `attention_mask` if the batch has no padding; otherwise pass the full mask of shape (batch, "
        "1, queries, keys), created on the CPU with the batch, which is not checked"
    )
    change = "omit `attention_mask`, or pass it with 4 dimensions"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "read" and any(is_below(site, "transformers", file=file) for file in _FILES)

    def remedy(self, site: Site) -> str:
        if is_below(site, "transformers", "find_packed_sequence_indices"):
            return (
                "without a mask and a cache it checks whether sequences are packed into one row: pass the "
                "full mask of shape (batch, 1, queries, keys), created on the CPU with the batch, which is "
                "not checked"
            )
        return self.advice
