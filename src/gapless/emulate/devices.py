"""Mixed devices: which operators accept host tensors beside device tensors, and CUDA's words when not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gapless.emulate.placement import ORPHAN, Placement

Tensor = torch.Tensor

_LENIENT = {
    # indices may live on the host: they are copied over (the table of waits counts that)
    "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index_put", "aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate",
    # lengths live on the host by contract
    "aten::_ctc_loss", "aten::_cudnn_ctc_loss", "aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward",
    "aten::_ctc_loss_backward", "aten::_use_cudnn_ctc_loss", "aten::segment_reduce", "aten::_segment_reduce_backward",
    # only metadata is read of the other tensor
    "aten::set_", "aten::resize_as_", "aten::is_same_size", "aten::result_type", "aten::_has_same_storage_numel",
    "aten::_debug_has_internal_overlap", "aten::_sparse_broadcast_to_copy", "aten::record_stream",
    # nested tensors keep their sizes on the host
    "aten::_nested_view_from_buffer", "aten::_nested_view_from_buffer_copy", "aten::_nested_tensor_from_tensor_list",
    "aten::_nested_from_padded", "aten::_nested_tensor_from_mask",
}  # fmt: skip
_LENIENT_PREFIXES = ("aten::_foreach_", "aten::_fused_", "aten::_amp_", "aten::_sparse_", "aten::_cudnn_", "prim::")


def accepts_mixed(operator: str) -> bool:
    """Whether `operator` (``aten::index``) takes host tensors beside device tensors on CUDA."""
    return operator in _LENIENT or operator.startswith(_LENIENT_PREFIXES)


def check(operator: str, func: Any, args: Any, kwargs: dict[str, Any], placement: Placement) -> None:
    """Raise as CUDA does when the arguments lie on several devices.

    Zero-dimensional host tensors become kernel arguments and are welcome everywhere.

    Raises:
        RuntimeError: with the words of the operator's own check.
    """
    first: str | None = None
    for name, tensor in _named_tensors(func, args, kwargs):
        state = placement.state_of(tensor)
        if state == ORPHAN or (state < 0 and tensor.dim() == 0):
            continue
        device = f"cuda:{state}" if state >= 0 else str(tensor.device)
        if device.startswith(("meta", "mkldnn")):
            continue
        if first is None:
            first = device
        elif device != first:
            raise RuntimeError(_words(operator, func, name, first, device))


def _named_tensors(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    names = [argument.name for argument in func._schema.arguments]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                yield name, item


def _words(operator: str, func: Any, name: str, first: str, other: str) -> str:
    short = operator.removeprefix("aten::")
    if short in ("convolution", "convolution_backward", "cudnn_convolution"):
        return _convolution_words(name, first, other)
    if torch.Tag.pointwise in func.tags or short in ("where", "lerp", "copy_"):
        return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
    overload = func._schema.overload_name
    method = f"wrapper_CUDA_{overload}_{short}" if overload and overload != "default" else f"wrapper_CUDA_{short}"
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {other}, different from other "
        f"tensors on {first} (when checking argument in method {method})"
    )


def _convolution_words(name: str, first: str, other: str) -> str:
    kinds = {True: "torch.cuda.FloatTensor", False: "torch.FloatTensor"}
    left, right = kinds[first.startswith("cuda")], kinds[other.startswith("cuda")]
    if left == right:
        return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
    return f"Input type ({left}) and {name} type ({right}) should be the same"
