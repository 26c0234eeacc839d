"""GAP152."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import bare_names, is_below

_FILE = "torch/nn/modules/transformer.py"


class TransformerMaskCheck(WaitRule):
    """`nn.TransformerEncoder` or `nn.TransformerDecoder` checks the values of its mask.

    ## What waits
    Without `is_causal`, encoder and decoder compare the given mask with a causal one, element by element,
    and read the answer on the CPU. In evaluation, with a padding mask, the encoder checks whether the
    padding is at the end of each row, to use nested tensors.

    ## Why it costs
    The check comes before the first layer, so each forward pass begins by waiting for the previous step.

    ## Example
    ```python
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).to(device)
    causal = nn.Transformer.generate_square_subsequent_mask(8, device=device)
    out = encoder(x.unsqueeze(0), mask=causal)
    ```

    ## Use instead
    ```python
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).to(device)
    causal = nn.Transformer.generate_square_subsequent_mask(8, device=device)
    out = encoder(x.unsqueeze(0), mask=causal, is_causal=True)
    ```
    Say what the mask is: `is_causal=True` for a causal one, `is_causal=False` for any other
    (`tgt_is_causal` in a decoder). `nn.TransformerEncoder(..., enable_nested_tensor=False)` turns off the
    padding check.

    ## When it is fine
    In evaluation with much padding, where nested tensors save more than the sync costs.
    """

    code = "GAP152"
    name = "transformer-mask-check"
    priority = 100
    advice = (
        "say what the mask is: `is_causal=True` or `False` (`tgt_is_causal` in a decoder); "
        "`enable_nested_tensor=False` in the encoder turns off its padding check"
    )
    change = "pass `is_causal=` to the transformer"

    def known_change(self, site: Site) -> str:
        return "`enable_nested_tensor=False` in the encoder" if _is_padding_check(site) else ""

    def matches(self, site: Site) -> bool:
        if _is_padding_check(site):
            return True
        return site.mechanism in ("read", "size", "values") and is_below(site, "torch", file=_FILE)


def _is_padding_check(site: Site) -> bool:
    """Whether the encoder checks that all padding is at the end."""
    return "_nested_tensor_from_mask_left_aligned" in bare_names(site)
