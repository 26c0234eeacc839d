"""GAP111."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._places import advise_for_library, bare_operator

_NAMES = ("sparse", "coalesce", "nested", "padded", "_csr", "_csc", "_bsr", "jagged")
_PRODUCTS = {"mm", "addmm", "addmm_", "mv", "hspmm", "_sparse_addmm", "_sparse_sparse_matmul"}


class SparseSize(WaitRule):
    """Building or coalescing a sparse or nested tensor: how much it stores depends on the data.

    ## What waits
    `to_sparse()`, `coalesce()` and products of sparse matrices allocate as many entries as the values
    require, so the CPU waits for their number. A product of a COO matrix with a dense one coalesces the
    matrix first, unless it already is; backward multiplies with its transpose, which never is. Building a
    nested tensor from a mask or from lengths on the GPU reads those sizes on the CPU.

    ## Why it costs
    The conversion is usually repeated in each step although the pattern of the matrix does not change, and
    each repetition counts and sorts again, then waits.

    ## Example
    ```python
    edges = (x @ x.T > 1).float()
    out = torch.sparse.mm(edges.to_sparse(), z)
    ```

    ## Use instead
    ```python
    edges = (x @ x.T > 1).float()
    out = edges @ z
    ```
    A mostly empty matrix whose pattern is fixed: build it once before the loop, with
    `torch.sparse_coo_tensor(indices, values, size, is_coalesced=True)`, and change only its values. Sums
    over the edges of a graph: `out.index_add_(0, target, source_rows)` needs no sparse tensor, forward or
    backward.

    ## When it is fine
    Once, before the loop; or where the matrix is so large that the dense form does not fit.
    """

    code = "GAP111"
    name = "sparse-size"
    priority = 60
    advice = (
        "build the sparse or nested tensor once, before the loop, and mark it coalesced; for sums over "
        "edges, `index_add_` needs no sparse tensor"
    )
    change = "build the sparse tensor once, before the loop"

    def matches(self, site: Site) -> bool:
        name = bare_operator(site)
        if site.mechanism == "size" and name in _PRODUCTS:
            return True
        return site.mechanism in ("size", "values", "read", "d2h") and any(part in name for part in _NAMES)

    def remedy(self, site: Site) -> str:
        if bare_operator(site) not in _PRODUCTS:
            return advise_for_library(site, self.advice)
        if site.detail == "sparse":
            return advise_for_library(site, _BOTH)
        return advise_for_library(site, _TRANSPOSED if site.of_node else _FACTOR)

    def known_change(self, site: Site) -> str:
        if bare_operator(site) not in _PRODUCTS:
            return ""
        if site.detail == "sparse":
            return "make one factor of the product dense"
        return "sum with `index_add_`" if site.of_node else "coalesce the matrix once, before the loop"


_BOTH = (
    "a product of two sparse matrices counts its elements every time: make one factor dense, or compute "
    "the product once, before the loop, where neither factor changes"
)
_FACTOR = (
    "the product coalesces its sparse matrix every time: call `.coalesce()` once, before the loop, and put "
    "the matrix on the left"
)
_TRANSPOSED = (
    "backward multiplies with the transposed matrix, which is coalesced every time: sum over edges with "
    "`index_add_`, or multiply in an `autograd.Function` that keeps a coalesced transpose for its backward"
)
