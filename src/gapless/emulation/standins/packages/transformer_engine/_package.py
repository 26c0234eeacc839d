"""The package as a whole."""

from __future__ import annotations

from gapless.emulation.standins.package import Package

PACKAGE = Package(
    "transformer_engine",
    "transformer-engine",
    "2.19.0",
    lacks="fp8 and fp4 are not computed: values, memory and times are those of the weights' dtype; "
    "TransformerLayer and fused operations (te.ops) are missing",
    requests=(
        "transformer-engine",
        "mixed_precision=fp8",
        "FP8RecipeKwargs",
        "TERecipeKwargs",
        "get_gpt_layer_with_transformer_engine_spec",
    ),
    parts=("layers", "attention", "distributed", "operations", "optimizers", "precision", "tensors"),
)
