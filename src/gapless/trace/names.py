"""Names that PyTorch gives to spans, where more than one room asks for them."""

from __future__ import annotations

import re

LOADING = re.compile(r"enumerate\(DataLoader\)#.*\.__next__|enumerate\(DataPipe\)#")
"""What the training process spends on its next batch."""

_SILENT = """
_batch_norm_impl_index _local_scalar_dense _reshape_alias _unsafe_view alias as_strided as_strided_ batch_norm
chunk contiguous conv1d conv2d conv3d detach detach_ diagonal dropout einsum empty empty_like empty_strided
expand expand_as flatten is_nonzero item layer_norm lift_fresh linear log_softmax matmul narrow new_empty
new_empty_strided permute reshape resize_ resolve_conj resolve_neg result_type scaled_dot_product_attention
select set_ slice softmax split split_with_sizes squeeze squeeze_ t to transpose unbind unflatten unfold
unsqueeze unsqueeze_ view view_as
"""
SILENT = frozenset(["detach", "detach_", *(f"aten::{name}" for name in _SILENT.split())])
"""Operators that launch no kernel: they give views, allocate, or leave all to operators inside them."""
