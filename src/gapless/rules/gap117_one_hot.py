"""GAP117."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._code import add_option, keyword
from gapless.rules._places import advise_for_library, bare_names, parse_waiting_line


class OneHot(WaitRule):
    """`one_hot` without `num_classes`: the largest class is read on the CPU to size the result.

    ## What waits
    `F.one_hot(target)` creates one column per class, and without `num_classes` it finds their number
    by reading the largest value of `target`. With `num_classes`, nothing is read on CUDA.

    ## Why it costs
    The shape of the model's output already contains the number of classes. Reading it from the data
    costs a sync, and gives a different shape for each batch that happens to lack the last class.

    ## Example
    ```python
    encoded = F.one_hot(y)
    ```

    ## Use instead
    ```python
    encoded = F.one_hot(y, num_classes=logits.shape[1])
    ```

    ## When it is fine
    Hardly ever: a shape that depends on the batch is a bug waiting to happen."""

    code = "GAP117"
    name = "one-hot"
    advice = "pass `num_classes=`: the number of classes that the model has"
    change = "give `one_hot` its `num_classes=`"

    def matches(self, site: Site) -> bool:
        return "one_hot" in bare_names(site)

    def remedy(self, site: Site) -> str:
        code = parse_waiting_line(site)
        call = code.only_call("one_hot") if code is not None else None
        if code is None or call is None or len(call.args) != 1 or keyword(call, "num_classes") is not None:
            return advise_for_library(site, self.advice)
        whole = add_option(code, call, "num_classes=n")
        return f"pass the number of classes: `{whole}`" if whole else self.advice
