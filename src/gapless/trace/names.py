"""Names of PyTorch's spans that several packages use."""

from __future__ import annotations

import re

LOADING = re.compile(r"enumerate\(DataLoader\)#.*\.__next__|enumerate\(DataPipe\)#")
"""Spans in which the training process waits for its next batch."""

LAUNCH = re.compile(r"(?:cuda|hip|cu)(?:(?:Ext)?(?:Module)?(?:Graph)?Launch(?!HostFunc)|Memcpy)")
"""Calls that put work on a device or into a graph."""

_VIEWS = """
_reshape_alias _unsafe_view alias as_strided as_strided_ chunk detach detach_ diagonal empty empty_like
empty_strided expand expand_as lift_fresh narrow new_empty new_empty_strided permute resize_ resolve_conj
resolve_neg result_type select set_ slice split split_with_sizes squeeze squeeze_ t transpose unbind unflatten
unflatten_dense_tensors unfold unsqueeze unsqueeze_ view view_as
"""
_COMPOSITE = """
_batch_norm_impl_index _local_scalar_dense batch_norm contiguous conv1d conv2d conv3d dropout einsum flatten
is_nonzero item layer_norm linear log_softmax matmul reshape scaled_dot_product_attention softmax to
"""
VIEWS = frozenset(["detach", "detach_", *(f"aten::{name}" for name in _VIEWS.split())])
"""Operators that return views or allocate, on any device."""
SILENT = VIEWS | {f"aten::{name}" for name in _COMPOSITE.split()}
"""Operators that launch no kernel: they return views, allocate, or leave all work to operators inside
them."""
