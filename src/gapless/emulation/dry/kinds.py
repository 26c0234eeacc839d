"""What is known beforehand of an operator: what it writes, whether it draws, whether it costs much."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation import kernels
from gapless.emulation.dry.guesses.made import base_of

_HEAVY = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "_addmm_activation", "_grouped_mm",
    "_scaled_mm", "convolution", "convolution_backward", "_convolution", "cudnn_convolution",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "_cudnn_rnn", "_cudnn_rnn_backward", "_cdist_forward", "_cdist_backward", "cholesky",
    "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_qr",
    "_linalg_solve_ex", "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_fft_c2c", "_fft_r2c",
    "_fft_c2r", "linalg_matrix_exp",
)  # fmt: skip
_LAYERS = ("dropout", "pool", "norm", "loss", "linalg", "rnn", "lstm", "gru", "ctc", "margin")
_CONSTANTS = frozenset(
    {
        "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
        "_efficientzerotensor",
    }
)  # fmt: skip
_SETTING = frozenset({"copy", "fill", "zero"})
_WHOLE_NUMBERS = frozenset({"randint", "randperm", "randint_like", "multinomial", "arange"})


class Kind:
    """One overload of an operator.

    `written` are the positions of arguments that it writes, `returned` for each result the position of the
    argument that it is, or -1. `constant` makes tensors of one value each, `unset` those of whatever the
    memory holds, `sets` writes its first argument whatever was in it, `afresh` says that one of these, a
    draw or a copy is what it does. `grows`: it may make more than it is given. `lists`: it does the same to
    each tensor of lists. `pointwise`: numbers among its arguments change no sizes. `shaped_like`: it takes
    no more than sizes from tensors. A `layer` keeps positions or masks for its gradients. What is made
    `afresh` may be as large as its first tensor (`alike`), or as the argument at position `size` says (-1).
    The result at position `status` says whether it could be computed (-1: none does).
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
        self.base = base_of(schema.name)
        self.names = [one.name for one in schema.arguments]
        aliases = [_aliased(one) for one in schema.arguments]
        self.written = tuple(n for n, (_, writes) in enumerate(aliases) if writes)
        results = [_aliased(one)[0] for one in schema.returns]
        self.returned = tuple(
            next((n for n in self.written if names and names & aliases[n][0]), -1) for names in results
        )
        self.status = next((n for n, one in enumerate(schema.returns) if one.name == "info"), -1)
        kept = torch.Tag.inplace_view in func.tags
        shared = any(one.alias_info is not None for one in schema.returns)
        self.kernel = _kernel(func)
        self.view = kept or (shared and not self.written)
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.sized = torch.Tag.dynamic_output_shape in func.tags
        self.makes = any(one.name == "device" for one in schema.arguments)
        self.constant = self.base in _CONSTANTS
        self.unset = self.constant and "empty" in self.base
        self.sets = (
            self.written == (0,)
            and not self.name.startswith("aten::_foreach")
            and (self.base in _SETTING or self.draws)
        )
        self.afresh = self.draws or self.constant or self.sets or self.base == "_to_copy"
        self.shaped_like = self.constant or self.base in ("rand_like", "randn_like", "randint_like")
        self.alike = self.sets or self.base == "_to_copy" or self.base.endswith("_like")
        self.size = self.names.index("size") if self.afresh and "size" in self.names else -1
        self.whole_numbers = self.base in _WHOLE_NUMBERS
        self.pointwise = bool(self.written) or torch.Tag.pointwise in func.tags or "_foreach_" in self.name
        self.heavy = self.base in _HEAVY or "attention" in self.base
        self.layer = any(word in self.base for word in _LAYERS)
        self.lists = "_foreach_" in self.name or "_fused_" in self.name
        self.grows = self.makes or self.base in (
            "repeat",
            "constant_pad_nd",
            "expand_copy",
            "repeat_interleave",
        )

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """All arguments in the schema's order, as far as they were given."""
        if not kwargs:
            return list(args)
        return [*args, *(kwargs.get(name) for name in self.names[len(args) :])]


def _kernel(func: Any) -> Any:
    """What computes `func` here where the CPU's kernel does not: its results look as with values."""
    if func.namespace != "aten" or not (kernels.lacks_cpu_kernel(func) or kernels.replaces_cpu_kernel(func)):
        return None
    how, run = kernels.find_kernel(func)
    return run if how == "kernel" else None


def _aliased(argument: Any) -> tuple[frozenset[str], bool]:
    """The names of the memory that an argument or a result shares, and whether that is written."""
    info = argument.alias_info
    if info is None:
        return frozenset(), False
    return frozenset(info.before_set), bool(info.is_write)
