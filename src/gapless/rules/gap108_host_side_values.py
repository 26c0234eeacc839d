"""GAP108."""

from __future__ import annotations

from gapless.model import Rule, Site
from gapless.rules._code import keyword
from gapless.rules._places import in_library, operator, own_code


class HostSideValues(Rule):
    """An operator that looks at values on the host before it starts, as `torch.multinomial` does.

    ## What waits
    Some operators read values of their arguments on the host: to check them, or to plan the work.
    `torch.multinomial` with one draw, or without replacement, reads whether all probabilities are finite
    and not negative, and whether a row is all zeros: two waits per call. `Categorical.sample()` ends there.

    ## Why it costs
    The read is inside the operator: nothing in the line shows it. In a sampling loop or in reinforcement
    learning it happens for every token or action.

    ## Example
    ```python
    probabilities = torch.softmax(logits, dim=-1)
    action = torch.multinomial(probabilities, 1)
    ```

    ## Use instead
    ```python
    probabilities = torch.softmax(logits, dim=-1)
    noise = torch.empty_like(probabilities).exponential_()
    action = (probabilities / noise).argmax(dim=-1, keepdim=True)
    ```
    The largest of `p / e`, with `e` exponential noise, is distributed as one draw from `p`: it is how the
    operator itself draws, without its checks. The random numbers differ for the same seed.

    ## When it is fine
    Outside the training loop, or where the check is wanted and a wait does not matter.
    """

    code = "GAP108"
    name = "host-side-values"
    priority = 20
    advice = (
        "use a form without the check, or prepare the values that the operator reads on the host beforehand"
    )

    def matches(self, site: Site) -> bool:
        return site.mechanism == "values"

    def remedy(self, site: Site) -> str:
        if operator(site) != "multinomial":
            return in_library(site, self.advice)
        drawn = "(p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True)"
        code = own_code(site)
        call = code.only_call("multinomial") if code is not None else None
        if (
            code is not None
            and call is not None
            and len(call.args) == 2
            and keyword(call, "replacement") is None
        ):
            subject, draws = code.text(call.args[0]), code.text(call.args[1])
            if draws == "1" and subject.isidentifier():
                one = drawn.replace("(p", f"({subject}")
                return f"`{one}` draws from the same distribution without the checks that wait"
        return in_library(
            site, f"one draw without the checks that wait: `{drawn}`, with `p` the probabilities"
        )
