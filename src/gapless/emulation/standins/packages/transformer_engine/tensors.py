"""``transformer_engine.pytorch.tensor``: kinds of narrow tensors, of which there are none here."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE
from gapless.emulation.support.refusals import refuse

_MODULE = "transformer_engine.pytorch.tensor"
_INSTEAD = "fp8 has no effect here: weights stay in their own dtype."


@PACKAGE.provides(_MODULE)
class QuantizedTensor(torch.Tensor):
    """A tensor in few bits, with its scale.

    Raises:
        NotEmulated: whenever one is made.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise refuse(f"`{_MODULE}.{cls.__name__}`", _INSTEAD)

    @classmethod
    def make_like(cls, *_: Any, **__: Any) -> Any:
        """Raises NotEmulated."""
        raise refuse(f"`{_MODULE}.{cls.__name__}.make_like`", _INSTEAD)


for _name, _modules in {
    "Float8Tensor": (f"{_MODULE}.float8_tensor", "transformer_engine.pytorch.float8_tensor"),
    "MXFP8Tensor": (f"{_MODULE}.mxfp8_tensor",),
    "Float8BlockwiseQTensor": (f"{_MODULE}.float8_blockwise_tensor",),
    "NVFP4Tensor": (f"{_MODULE}.nvfp4_tensor",),
}.items():
    _kind = type(_name, (QuantizedTensor,), {"__module__": _MODULE})
    for _at in (_MODULE, *_modules):
        PACKAGE.holds(_at, **{_name: _kind})


def _of_none(name: str) -> Any:
    def function(tensors: Any = (), *_: Any, **__: Any) -> None:
        """Nothing, as no tensor is narrow.

        Raises:
            NotEmulated: one is given.
        """
        if not isinstance(tensors, list | tuple) or len(tensors):
            raise refuse(f"`{_MODULE}.utils.{name}`", _INSTEAD)

    return function


for _name in (
    "cast_master_weights_to_fp8",
    "post_all_gather_processing",
    "quantize_master_weights",
    "replace_raw_data",
):
    PACKAGE.holds(f"{_MODULE}.utils", **{_name: _of_none(_name)})
