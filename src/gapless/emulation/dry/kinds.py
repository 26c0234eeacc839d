"""Static properties of operators: what they write, whether they draw, whether they are expensive."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation import kernels
from gapless.emulation.dry.guesses.rules import base_name

_HEAVY_OPERATORS = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "_addmm_activation", "_grouped_mm",
    "_scaled_mm", "convolution", "convolution_backward", "_convolution", "cudnn_convolution",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "_cudnn_rnn", "_cudnn_rnn_backward", "_cdist_forward", "_cdist_backward", "cholesky",
    "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_qr",
    "_linalg_solve_ex", "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_fft_c2c", "_fft_r2c",
    "_fft_c2r", "linalg_matrix_exp",
)  # fmt: skip
_LAYER_WORDS = ("dropout", "pool", "norm", "loss", "linalg", "rnn", "lstm", "gru", "ctc", "margin")
_CONSTANT_FACTORIES = frozenset(
    {
        "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
        "_efficientzerotensor",
    }
)  # fmt: skip
_FILLING_OPERATORS = frozenset({"copy", "fill", "zero"})
_INTEGER_SOURCES = frozenset({"randint", "randperm", "randint_like", "multinomial", "arange"})


class OperatorKind:
    """One overload of an operator.

    `written` are the positions of arguments that it writes, `returned` for each result the position of the
    argument that it returns, or -1. `constant`: a factory of one value or of uninitialised memory (`unset`);
    `sets`: it overwrites its first argument; `afresh`: it is one of these, a draw or a copy. `grows`: its
    results may be larger than its arguments. `lists`: it handles each tensor of lists alike. `pointwise`:
    numbers among its arguments change no sizes. `shaped_like`: it uses only the sizes of tensors. A `layer`
    keeps positions or masks for its gradients. The size of an `afresh` result is that of its first tensor
    (`alike`), or the argument at position `size` (-1: none). The result at position `status` is an error
    code (-1: none).
    """

    __slots__ = (
        "afresh", "alike", "base", "constant", "draws", "func", "grows", "heavy", "kernel", "layer", "lists",
        "makes", "name", "names", "pointwise", "returned", "sets", "shaped_like", "size", "sized", "status",
        "unset", "view", "whole_numbers", "written",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name: str = schema.name
        self.base = base_name(schema.name)
        self.names = [argument.name for argument in schema.arguments]
        aliases = [_aliases_of(argument) for argument in schema.arguments]
        self.written = tuple(n for n, (_, writes) in enumerate(aliases) if writes)
        results = [_aliases_of(argument)[0] for argument in schema.returns]
        self.returned = tuple(
            next((n for n in self.written if names and names & aliases[n][0]), -1) for names in results
        )
        self.status = next((n for n, argument in enumerate(schema.returns) if argument.name == "info"), -1)
        kept = torch.Tag.inplace_view in func.tags
        shared = any(argument.alias_info is not None for argument in schema.returns)
        self.kernel = _own_kernel(func)
        self.view = kept or (shared and not self.written)
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.sized = torch.Tag.dynamic_output_shape in func.tags
        self.makes = any(argument.name == "device" for argument in schema.arguments)
        self.constant = self.base in _CONSTANT_FACTORIES
        self.unset = self.constant and "empty" in self.base
        self.sets = (
            self.written == (0,)
            and not self.name.startswith("aten::_foreach")
            and (self.base in _FILLING_OPERATORS or self.draws)
        )
        self.afresh = self.draws or self.constant or self.sets or self.base == "_to_copy"
        self.shaped_like = self.constant or self.base in ("rand_like", "randn_like", "randint_like")
        self.alike = self.sets or self.base == "_to_copy" or self.base.endswith("_like")
        self.size = self.names.index("size") if self.afresh and "size" in self.names else -1
        self.whole_numbers = self.base in _INTEGER_SOURCES
        self.pointwise = bool(self.written) or torch.Tag.pointwise in func.tags or "_foreach_" in self.name
        self.heavy = self.base in _HEAVY_OPERATORS or "attention" in self.base
        self.layer = any(word in self.base for word in _LAYER_WORDS)
        self.lists = "_foreach_" in self.name or "_fused_" in self.name
        self.grows = self.makes or self.base in (
            "repeat",
            "constant_pad_nd",
            "expand_copy",
            "repeat_interleave",
        )

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments in the order of the schema; None for those not passed."""
        if not kwargs:
            return list(args)
        return [*args, *(kwargs.get(name) for name in self.names[len(args) :])]


def _own_kernel(func: Any) -> Any:
    """Return Gapless's own kernel for `func`, whose results have the GPU's layout; None if it has none."""
    if func.namespace != "aten" or not (kernels.lacks_cpu_kernel(func) or kernels.replaces_cpu_kernel(func)):
        return None
    how, run = kernels.find_kernel(func)
    return run if how == "kernel" else None


def _aliases_of(argument: Any) -> tuple[frozenset[str], bool]:
    """Return the alias names of an argument or result, and whether it is written."""
    info = argument.alias_info
    if info is None:
        return frozenset(), False
    return frozenset(info.before_set), bool(info.is_write)
