"""``fp8_autocast`` and its like, and recipes: accepted, and without effect."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gapless.emulation.standins.launch import LaunchState
from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

_PYTORCH, _FP8, _RECIPE = (
    "transformer_engine.pytorch",
    "transformer_engine.pytorch.fp8",
    "transformer_engine.common.recipe",
)
_QUANTIZATION = "transformer_engine.pytorch.quantization"
_EFFECTLESS = "Transformer Engine's fp8 has no effect here: layers compute in their weights' dtype"


@contextmanager
def _ignore_setting(enabled: bool = True, *_: Any, **__: Any) -> Iterator[None]:
    """A context that changes nothing, which the report says."""
    if enabled and LaunchState.core is not None:
        LaunchState.core.note(_EFFECTLESS)
    yield


for _name in ("fp8_autocast", "fp8_model_init", "autocast", "quantized_model_init"):
    for _module in (_PYTORCH, _QUANTIZATION, _FP8):
        PACKAGE.holds(_module, **{_name: _ignore_setting})


def _capable(least: tuple[int, int]) -> Any:
    def available(*_: Any, **kwargs: Any) -> Any:
        """Whether the emulated GPU has it; with ``return_reason`` also why not."""
        can = LaunchState.core is not None and LaunchState.core.gpu.capability >= least
        reason = "" if can else f"compute capability {least[0]}.{least[1]} or later is needed"
        return (can, reason) if kwargs.get("return_reason") else can

    return available


def _check(least: tuple[int, int]) -> Any:
    available = _capable(least)
    return lambda: available(return_reason=True)


for _name, _least in (("fp8", (8, 9)), ("mxfp8", (10, 0)), ("fp8_block_scaling", (9, 0)), ("nvfp4", (10, 0))):
    PACKAGE.holds(_PYTORCH, **{f"is_{_name}_available": _capable(_least)})
    PACKAGE.holds(_FP8, **{f"check_{_name}_support": _check(_least)})


@PACKAGE.provides(_RECIPE)
class Format(enum.Enum):
    """Formats of eight bits: the largest numbers forward and backward."""

    E4M3 = (448, 448)
    E5M2 = (57344, 57344)
    HYBRID = (448, 57344)


class Recipe:
    """Settings of a way to scale."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.__dict__.update(kwargs)


PACKAGE.holds(_RECIPE, Recipe=Recipe)
for _name in (
    "DelayedScaling",
    "Float8CurrentScaling",
    "MXFP8BlockScaling",
    "Float8BlockScaling",
    "NVFP4BlockScaling",
):
    PACKAGE.holds(_RECIPE, **{_name: type(_name, (Recipe,), {"__module__": _RECIPE})})


@PACKAGE.provides(_FP8, _QUANTIZATION)
class FP8GlobalStateManager:
    """The fp8 state of this process, which is always off."""

    @classmethod
    def reset(cls) -> None:
        """Begin anew."""

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether layers compute in fp8."""
        return False

    is_fp8_calibration = is_first_fp8_module = with_fp8_parameters = is_fp8_enabled

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """Some recipe."""
        return Recipe()

    @classmethod
    def get_fp8_group(cls) -> None:
        """Return the process group that shares scales: None."""

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Whether weights are cast again: they never are."""


@PACKAGE.provides(_PYTORCH, _FP8)
def get_default_recipe() -> Recipe:
    """Some recipe."""
    return Recipe()
