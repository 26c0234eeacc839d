"""GAP144."""

from __future__ import annotations

import ast

from gapless.model import Site, WaitRule
from gapless.rules._code import Code
from gapless.rules._places import advise_for_library, parse_waiting_line

_RESULTS = {
    "cholesky": ("cholesky_ex", ".L"),
    "inv": ("inv_ex", ".inverse"),
    "solve": ("solve_ex", ".result"),
    "lu_factor": ("lu_factor_ex", "[:2]"),
    "ldl_factor": ("ldl_factor_ex", "[:2]"),
}


class LinalgStatus(WaitRule):
    """`torch.linalg` reads an error code on the CPU: whether the factorization has succeeded.

    ## What waits
    `torch.linalg.cholesky`, `inv`, `solve`, `eigh`, `svd` and others raise an error for a matrix that
    cannot be factored. The solver leaves a code on the GPU, and the CPU reads it before it continues.

    ## Why it costs
    The factorization of a small matrix takes microseconds; the sync waits for everything queued before
    it. Optimizers with preconditioners, whitening and Gaussian likelihoods do this in each step, for
    each layer.

    ## Example
    ```python
    factor = torch.linalg.cholesky(covariance)
    ```

    ## Use instead
    ```python
    factor, info = torch.linalg.cholesky_ex(covariance)
    failed = info != 0  # a tensor: sum it up, and read it once every N steps
    ```
    `cholesky_ex`, `inv_ex`, `solve_ex`, `lu_factor_ex` and `ldl_factor_ex` leave the code on the GPU. If it
    is not zero, the result is not valid: check it, but not in each step. `eigh` and `svd` have no such
    variant: batch the matrices into one call, or call them every N steps.

    ## When it is fine
    If called rarely, or for matrices so large that the sync does not matter."""

    code = "GAP144"
    name = "linalg-status"
    advice = (
        "use the variant that leaves its error code on the GPU (`cholesky_ex`, `inv_ex`, `solve_ex`, "
        "`lu_factor_ex`), and check the code every N steps; batch calls that have no such variant"
    )
    change = "use the `_ex` variant, check its code every N steps"

    def matches(self, site: Site) -> bool:
        return site.mechanism == "status"

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        return (_advise_ex_variant(code) if code is not None else "") or advise_for_library(site, self.advice)


def _advise_ex_variant(code: Code) -> str:
    call = code.only_call(*_RESULTS)
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    prefix, arguments = code.subject(call), ", ".join(code.text(value) for value in call.args)
    if prefix not in ("torch.linalg", "linalg", "LA") or call.keywords or not all(map(code.text, call.args)):
        return ""
    name, result = _RESULTS[call.func.attr]
    return (
        f"`{prefix}.{name}({arguments}){result}` leaves the error code on the GPU: keep its "
        "`info`, and check "
        "it every N steps"
    )
