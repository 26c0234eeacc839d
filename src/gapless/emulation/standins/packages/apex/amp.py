"""``apex.amp``, which torch's own autocast has replaced: importable, and refusing."""

from __future__ import annotations

from typing import Any

from gapless.emulation.standins.packages.apex._package import PACKAGE
from gapless.emulation.support.refusals import refuse

_INSTEAD = "torch.amp (autocast and GradScaler) does the same without apex."


@PACKAGE.provides("apex.amp")
def initialize(*_: Any, **__: Any) -> Any:
    """Raises NotEmulated: it rewrites torch's functions."""
    raise refuse("`apex.amp.initialize`", _INSTEAD)


@PACKAGE.provides("apex.amp")
def scale_loss(*_: Any, **__: Any) -> Any:
    """Raises NotEmulated."""
    raise refuse("`apex.amp.scale_loss`", _INSTEAD)


@PACKAGE.provides("apex.amp")
def master_params(optimizer: Any) -> Any:
    """Yield the parameters of `optimizer`."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
