"""``transformer_engine.pytorch.ops`` and ``router``: what can be named, and is refused when it is used."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE
from gapless.emulation.support.refusals import refuse

_MODULE = "transformer_engine.pytorch.ops"
_INSTEAD = "Layers of transformer_engine.pytorch are computed: leave the fusing of operations off."
_NAMES = (
    "AllReduce", "BasicLinear", "Bias", "GEGLU", "GELU", "GroupedLinear", "LayerNorm", "Linear",
    "MakeExtraOutput", "RMSNorm", "ReGLU", "ReLU", "ReduceScatter", "ScaledClampedQGeGLU", "ScaledSReLU",
    "ScaledSwiGLU", "Sequential", "SiLU", "SwiGLU",
)  # fmt: skip


@PACKAGE.provides(_MODULE)
class FusibleOperation(nn.Module):
    """An operation of a sequence.

    Raises:
        NotEmulated: whenever one is made.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise refuse(f"`{_MODULE}.{type(self).__name__}`", _INSTEAD)


for _name in _NAMES:
    PACKAGE.holds(_MODULE, **{_name: type(_name, (FusibleOperation,), {"__module__": _MODULE})})


def _make_refusal(name: str) -> Any:
    def function(*_: Any, **__: Any) -> Any:
        raise refuse(f"`{name}`", "The router's own operators are computed: leave its fusing off.")

    return function


_ROUTER = "transformer_engine.pytorch.router"
for _name in ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function"):
    PACKAGE.holds(_ROUTER, **{_name: _make_refusal(f"{_ROUTER}.{_name}")})
