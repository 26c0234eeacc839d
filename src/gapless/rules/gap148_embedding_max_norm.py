"""GAP148."""

from __future__ import annotations

from gapless.model import Rule, Site
from gapless.rules._places import operator


class EmbeddingMaxNorm(Rule):
    """`Embedding(max_norm=...)`: the distinct indices are counted on the host before their rows are scaled.

    ## What waits
    With `max_norm`, an embedding first scales down the rows that it is about to read. On CUDA it finds the
    distinct indices of the batch to do so, and their number sizes the next kernel: the host waits for it.

    ## Why it costs
    An embedding is the first layer, so the wait stands at the beginning of each forward pass, where the
    host should be launching ahead.

    ## Example
    ```python
    embedding = nn.Embedding(10, 4, max_norm=1.0, device=device)
    out = embedding(y)
    ```

    ## Use instead
    ```python
    embedding = nn.Embedding(10, 4, device=device)
    with torch.no_grad():
        norms = embedding.weight.norm(dim=1, keepdim=True)
        embedding.weight.mul_((1.0 / norms.clamp_min(1e-7)).clamp_max(1.0))
    out = embedding(y)
    ```
    Scaling all rows after each optimizer step gives rows of the same norm at a fixed cost. For a very large
    table, scale only the rows of the batch when they are used: `F.embedding(y, weight)` followed by the
    same factor.

    ## When it is fine
    For huge tables, where scaling all rows would cost more than the wait.
    """

    code = "GAP148"
    name = "embedding-max-norm"
    priority = 100
    advice = "leave `max_norm` out and scale the rows yourself, for the whole table after each optimizer step"

    def matches(self, site: Site) -> bool:
        return operator(site).startswith("embedding_renorm")
