"""GAP507."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import Hit, OptimizerRule, Site
from gapless.model.optimizer import RATE_IN_A_TENSOR, OptimizerUse
from gapless.model.wording import count

_MIN_SHARE_OF_STEP = 0.005
"""Share of a step below which nothing is reported."""


class OptimizerOneByOne(OptimizerRule):
    """The optimizer updates parameters one by one, though many have the same settings.

    ## What waits
    Nothing waits, but the CPU launches at least one kernel for each parameter in each step. `torch.optim`
    updates the parameters of one group together, with one kernel for the whole update (`fused`) or one for
    each of its operations (`foreach`, the default). It cannot where each parameter is a group, or an
    optimizer, of its own, and it does not where `foreach=False` or `fused=False` turn that off
    (`fused=False` alone turns off `foreach` as well), nor where the learning rate of Adam is a tensor without
    `capturable=True`.

    ## Why it costs
    Each group takes the CPU some dozens of microseconds of Python and at least two launches. On the GPU, a
    kernel over one small tensor uses few multiprocessors; a fused one also computes with its settings in
    fp64, for which most GPUs other than those of data centres have few units. A published detector that went
    from 465 groups to 28 trains 23 % faster.

    ## Example
    ```python
    groups = [{"params": [p], "lr": lr_of(name)} for name, p in model.named_parameters()]
    optimizer = torch.optim.AdamW(groups, fused=True)
    ```

    ## Use instead
    ```python
    settings = {}
    for name, p in model.named_parameters():
        settings.setdefault(lr_of(name), []).append(p)
    groups = [{"params": params, "lr": lr} for lr, params in settings.items()]
    optimizer = torch.optim.AdamW(groups, fused=True)
    ```
    Results are the same bit for bit if only groups are joined. The order of parameters in a checkpoint's
    optimizer state changes, so checkpoints of before must be loaded into the old groups.
    `fused=True` (Adam, AdamW, SGD, with floating point parameters on the GPU and dense gradients) also
    changes the last bits of the parameters, because it rounds elsewhere.

    ## When it is fine
    Where groups have different settings, or get them later in the run; where optimizers step after different
    backward passes, as those of a GAN; where steps are long and the GPU limits them anyway; and where an
    optimizer steps for each parameter in backward, to save the memory of gradients.
    """

    code = "GAP507"
    name = "optimizer-one-by-one"
    advice = "give the optimizer one parameter group for each distinct setting, not one for each parameter"
    change = "one parameter group for each distinct setting"

    def of_optimizer(self, use: OptimizerUse) -> Iterable[Hit]:
        gain = use.joined
        if gain is None or gain.before <= 0:
            return
        if gain.saved.likely < _MIN_SHARE_OF_STEP * gain.before or not gain.saved.tells(gain.before):
            return
        remedy, change = _advice(use)
        yield Hit(
            evidence=tuple(_evidence(use)),
            remedy=remedy,
            change=change,
            site=Site(operator=f"{use.name}.step", mechanism="none", stack=(use.line,)) if use.line else None,
            idle=gain.saved.likely,
            steps=1,
        )


def _evidence(use: OptimizerUse) -> Iterable[str]:
    parameters = count(use.parameters, "parameter")
    if use.joins:
        settings = "the same settings" if use.settings == 1 else f"only {use.settings} different settings"
        if use.turns > 1:
            optimizers = count(use.instances, "optimizer")
            yield (
                f"{optimizers} for {parameters}, which step in {use.turns} turns: after different backward "
                "passes, or with the same parameters"
            )
        elif use.instances > 1:
            yield f"{count(use.instances, 'optimizer')} for {parameters}, with {settings}"
        else:
            yield f"{count(use.groups, 'group')} for {parameters}, with {settings}"
        if use.maker is not None:
            yield f"`{use.maker.function}` at {use.maker.short} makes the groups"
    if use.turned_off and use.way == "single":
        reason = use.turned_off if use.turned_off == RATE_IN_A_TENSOR else f"`{use.turned_off}`"
        yield f"{reason} launches each operation for each of {parameters}"


def _advice(use: OptimizerUse) -> tuple[str, str]:
    words, changes = [], []
    if use.joins:
        groups = "one parameter group" if use.settings == 1 else f"{use.settings} parameter groups"
        if use.turns > 1:
            words.append(
                f"make {use.turns} of {use.name}: one of all parameters that are updated after the same "
                "backward pass, none twice, with one parameter group for each distinct setting"
            )
            changes.append(f"one {use.name} for what is updated at the same time")
        elif use.instances > 1:
            words.append(f"make one {use.name} of all parameters, with {groups}: the results are the same")
            changes.append(f"one {use.name} for all parameters")
        else:
            words.append(
                f"join groups of equal settings: {use.groups} become {use.settings}, with equal results"
            )
            changes.append(f"{use.groups} → {use.settings} parameter groups, one per setting")
    if use.way == "single" and use.better_way == "fused":
        words.append(f"`{use.name}(..., fused=True)`, which changes the last bits of the parameters")
        changes.append("`fused=True`")
    elif use.way == "single" and use.turned_off == RATE_IN_A_TENSOR:
        words.append("`capturable=True`, with which the default goes through lists")
        changes.append("`capturable=True`")
    elif use.way == "single" and use.better_way == "foreach":
        words.append(f"leave out `{use.turned_off}`: the default goes through lists ({use.refuses_fused})")
        changes.append(f"leave out `{use.turned_off}`")
    return "; ".join(words), ", ".join(changes)
