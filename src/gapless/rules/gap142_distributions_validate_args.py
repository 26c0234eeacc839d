"""GAP142."""

from __future__ import annotations

from gapless.model import Site, WaitRule
from gapless.rules._code import add_option, keyword
from gapless.rules._places import bare_names, is_below, parse_user_line

_FILE = "torch/distributions/"


class DistributionsValidateArgs(WaitRule):
    """`torch.distributions` checks its arguments on the CPU whenever a distribution is created.

    ## What waits
    With `validate_args` on, which is the default, a distribution reads for each of its parameters whether
    all values satisfy their constraint, and `log_prob` reads whether the value lies in the support. Each
    check is a sync.

    ## Why it costs
    Reinforcement learning and variational models create a distribution in each step:
    `Normal(mean, std)` syncs twice, its `log_prob` once more, right after the network that computed
    the parameters.

    ## Example
    ```python
    policy = torch.distributions.Categorical(logits=logits)
    loss = -policy.log_prob(y).mean()
    ```

    ## Use instead
    ```python
    policy = torch.distributions.Categorical(logits=logits, validate_args=False)
    loss = -policy.log_prob(y).mean()
    ```
    `torch.distributions.Distribution.set_default_validate_args(False)` turns off the checks for the whole
    program, as does `python -O`. Keep them on in tests.

    ## When it is fine
    While developing, and where distributions are created rarely."""

    code = "GAP142"
    name = "distributions-validate-args"
    priority = 100
    advice = (
        "create the distribution with `validate_args=False`, or turn the checks off for the whole program: "
        "`torch.distributions.Distribution.set_default_validate_args(False)`"
    )
    change = "create the distribution with `validate_args=False`"

    def matches(self, site: Site) -> bool:
        return (
            site.mechanism == "read"
            and "__bool__" in bare_names(site)
            and is_below(site, "torch", file=_FILE)
        )

    def remedy(self, site: Site) -> str:
        code = parse_user_line(site)
        constructions = (
            [c for c in code.calls(*_MADE) if keyword(c, "validate_args") is None] if code is not None else []
        )
        option = "validate_args=False"
        whole = (
            add_option(code, constructions[0], option) if code is not None and len(constructions) == 1 else ""
        )
        if not whole or not is_below(site, "torch", "__init__", _FILE):
            return self.advice
        return f"turn its checks off: `{whole}`"


_MADE = (
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli",
    "Dirichlet", "Exponential", "Gamma", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal",
    "Independent", "InverseGamma", "Kumaraswamy", "Laplace", "LogNormal", "LogisticNormal",
    "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial", "MultivariateNormal",
    "NegativeBinomial", "Normal", "OneHotCategorical", "Pareto", "Poisson", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution", "Uniform", "VonMises",
    "Weibull", "Wishart",
)  # fmt: skip
