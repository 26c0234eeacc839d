"""Predicates of the table of waits: when a row applies, one small function per condition.

A predicate takes a :class:`Call` and returns whether the host would wait on a CUDA device, or how
often the row applies (an index expression waits once per mask). It uses only placement, shapes and
dtypes, never values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.emulation.waits.call import Call
from gapless.torch_internals import VERSION

__all__ = ["PREDICATES", "Call", "Predicate"]

_MASKS = (torch.bool, torch.uint8)
_MODE_IN_ONE_KERNEL = 2048
"""Longest slice, in elements, for which CUDA's `mode` needs no help from the host."""

Predicate = Callable[[Call], "bool | int"]
PREDICATES: dict[str, Predicate] = {}


def _predicate(name: str) -> Callable[[Predicate], Predicate]:
    """Register the decorated function as the predicate of rows with `when` equal to `name`."""

    def register(function: Predicate) -> Predicate:
        PREDICATES[name] = function
        return function

    return register


# Anything on the device


@_predicate("on-device")
def on_device(call: Call) -> bool:
    """Whether any tensor among the arguments is on the device."""
    return any(call.on_device(tensor) for tensor in call.tensors())


@_predicate("not-empty")
def not_empty(call: Call) -> bool:
    """Whether the first argument is on the device and has elements."""
    return call.on_device(call.subject) and call.subject.numel() > 0


@_predicate("drawn-before-torch-2.5")
def multinomial_reads(call: Call) -> int:
    """Whether an older `multinomial` reads two values: in every draw but several with replacement."""
    if VERSION >= (2, 5) or not call.on_device(call.subject):
        return False
    return not call.argument("replacement", False) or call.argument("num_samples", 1) == 1


# Indexing


def _indices(call: Call) -> list[torch.Tensor]:
    return [index for index in call.argument("indices", ()) or () if isinstance(index, torch.Tensor)]


def _device_masks(call: Call) -> int:
    return sum(index.dtype in _MASKS and call.on_device(index) for index in _indices(call))


def _becomes_masked_fill(call: Call) -> bool:
    """Whether ``index_put_`` turns into ``masked_fill_``: one mask on the device, one value on the host."""
    value, indices = call.argument("values"), _indices(call)
    return (
        not call.argument("accumulate", False)
        and isinstance(value, torch.Tensor)
        and value.numel() == 1
        and call.is_cpu(value)
        and len(indices) == 1
        and indices[0].dtype in _MASKS
        and call.on_device(indices[0])
    )


@_predicate("masks-on-device")
def masks_on_device(call: Call) -> int:
    """Count the boolean masks on the device that index a tensor on the device."""
    return _device_masks(call) if call.on_device(call.subject) else 0


@_predicate("host-indices")
def host_indices(call: Call) -> int:
    """Count the index tensors on the host that index a tensor on the device.

    Masks on the host are excluded: they are counted there and their positions are sent from pinned memory
    without waiting.
    """
    if not call.on_device(call.subject):
        return 0
    return sum(index.dtype not in _MASKS and call.is_cpu(index) for index in _indices(call))


@_predicate("put-masks-on-device")
def put_masks_on_device(call: Call) -> int:
    """Count like ``masks-on-device``, but 0 if the assignment is a ``masked_fill_``."""
    return 0 if _becomes_masked_fill(call) else masks_on_device(call)


@_predicate("put-host-indices")
def put_host_indices(call: Call) -> int:
    """Count like ``host-indices``; when accumulating, a host mask is sent once per dimension it covers."""
    count = int(host_indices(call))
    if call.argument("accumulate", False) and call.on_device(call.subject):
        count += sum(i.dim() for i in _indices(call) if i.dtype in _MASKS and call.is_cpu(i))
    return count


@_predicate("put-device-indices")
def put_device_indices(call: Call) -> int:
    """Count the index tensors on the device that index a written tensor on the host."""
    return sum(map(call.on_device, _indices(call))) if call.is_cpu(call.subject) else 0


@_predicate("put-host-value")
def put_host_value(call: Call) -> bool:
    """Whether a 0-dim host value is assigned into a tensor on the device, not through ``masked_fill_``."""
    value = call.argument("values")
    return (
        call.on_device(call.subject)
        and call.is_cpu(value)
        and value.dim() == 0
        and not _becomes_masked_fill(call)
    )


# Values that are read, or sent, to be used as scalars


@_predicate("device-value")
def device_value(call: Call) -> bool:
    """Whether the fill value is a tensor on the device, which is read to become a scalar."""
    return call.on_device(call.argument("value"))


@_predicate("device-value-into-host")
def device_value_into_host(call: Call) -> bool:
    """Whether a tensor on the host is filled with a value from the device."""
    return call.is_cpu(call.subject) and call.on_device(call.argument("value"))


@_predicate("host-scalars-in-where")
def host_scalars_in_where(call: Call) -> int:
    """Count the 0-dim host operands of `where` sent to the device because another operand is there."""
    operands = [call.argument(name) for name in ("condition", "self", "other")]
    if not any(call.on_device(operand) for operand in operands):
        return 0
    return sum(call.is_cpu(operand) and operand.dim() == 0 for operand in operands)


@_predicate("device-endpoints")
def device_endpoints(call: Call) -> int:
    """Count the tensors on the device among start and end (`linspace`, `logspace`)."""
    return sum(call.on_device(call.argument(name)) for name in ("start", "end"))


@_predicate("host-probabilities")
def host_probabilities(call: Call) -> bool:
    """Whether probabilities on the host fill a tensor on the device."""
    return call.on_device(call.subject) and call.is_cpu(call.argument("p"))


# Comparisons


@_predicate("same-shape")
def same_shape(call: Call) -> bool:
    """Whether two different, non-empty device tensors have one shape; otherwise no values are needed."""
    left, right = call.argument("self"), call.argument("other")
    if not (call.on_device(left) and call.on_device(right)) or left.shape != right.shape:
        return False
    if left.numel() == 0:
        return False
    return not (
        left.layout is torch.strided
        and right.layout is torch.strided
        and left.dtype == right.dtype
        and left.untyped_storage()._cdata == right.untyped_storage()._cdata
        and left.storage_offset() == right.storage_offset()
        and left.stride() == right.stride()
    )


@_predicate("isin-by-sorting")
def isin_by_sorting(call: Call) -> bool:
    """Whether `isin` has so many test elements that both sides are made unique and sorted."""
    elements = call.argument("elements", call.argument("element"))
    tests = call.argument("test_elements", call.argument("test_element"))
    if not call.on_device(tests) or call.argument("assume_unique", False):
        return False
    size = elements.numel() if isinstance(elements, torch.Tensor) else 1
    return size > 0 and tests.numel() >= 10.0 * size**0.145


# Sizes that depend on data


@_predicate("no-output-size")
def no_output_size(call: Call) -> bool:
    """Whether `repeat_interleave` has repeats on the device and no `output_size`."""
    repeats = call.argument("repeats")
    return call.on_device(repeats) and repeats.numel() > 0 and call.argument("output_size") is None


@_predicate("signed-not-empty")
def signed_not_empty(call: Call) -> bool:
    """Whether counts have a signed integer type: they could be negative and are checked."""
    return bool(not_empty(call)) and call.subject.dtype != torch.uint8


@_predicate("no-num-classes")
def no_num_classes(call: Call) -> bool:
    """Whether `one_hot` runs on the device without `num_classes`."""
    return bool(not_empty(call)) and call.argument("num_classes", -1) == -1


@_predicate("smoothed-with-weights")
def smoothed_with_weights(call: Call) -> bool:
    """Whether `cross_entropy` has class weights and label smoothing: the mean is over the chosen rows'
    weights."""
    target, weight = call.argument("target"), call.argument("weight", None)
    return (
        call.on_device(call.subject)
        and weight is not None
        and float(call.argument("label_smoothing", 0.0)) > 0
        and call.argument("reduction", "mean") == "mean"
        and not target.is_floating_point()
    )


@_predicate("num-classes-given")
def has_num_classes(call: Call) -> bool:
    """Whether `one_hot` runs on the device with `num_classes` (the CPU path reads values, the CUDA path does
    not)."""
    return bool(not_empty(call)) and call.argument("num_classes", -1) != -1


@_predicate("dense-on-device")
def dense_on_device(call: Call) -> bool:
    """Whether the subject is a strided tensor on the device."""
    return call.on_device(call.subject) and call.subject.layout is torch.strided


@_predicate("uncoalesced")
def uncoalesced(call: Call) -> bool:
    """Whether the subject is a COO tensor on the device with at least two entries."""
    subject = call.subject
    return call.on_device(subject) and subject.layout is torch.sparse_coo and subject._nnz() >= 2


@_predicate("uncoalesced-factor")
def uncoalesced_factor(call: Call) -> bool:
    """Whether a COO factor is coalesced first; a right factor always is, as it is transposed before."""
    factors = list(call.tensors())[-2:]
    sparse = [factor for factor in factors if factor.layout is torch.sparse_coo]
    if len(sparse) != 1 or not call.on_device(sparse[0]) or sparse[0]._nnz() < 2:
        return False
    return sparse[0] is not factors[0] or not sparse[0].is_coalesced()


@_predicate("sparse-factors")
def sparse_factors(call: Call) -> int:
    """Count the waits of a product of two COO matrices: one for its size, one for each coalesced first."""
    factors = list(call.tensors())
    if any(factor.layout is not torch.sparse_coo or not call.on_device(factor) for factor in factors):
        return 0
    return 1 + sum(not factor.is_coalesced() and factor._nnz() >= 2 for factor in factors)


@_predicate("no-sparse-size")
def no_sparse_size(call: Call) -> bool:
    """Whether `sparse_coo_tensor` has indices on the device and no size."""
    indices = call.argument("indices")
    size = call.argument("size")
    return call.on_device(indices) and size is None


@_predicate("no-total-length")
def no_total_length(call: Call) -> bool:
    """Whether a padded tensor on the device becomes jagged without the total length."""
    return call.on_device(call.subject) and call.argument("total_L") is None


# Checks of values


@_predicate("histogram-range-open")
def histogram_range_open(call: Call) -> bool:
    """Whether `histc` on the device has min equal to max: the range is taken from the data."""
    return bool(not_empty(call)) and call.argument("min", 0) == call.argument("max", 0)


@_predicate("sorter-given")
def has_sorter(call: Call) -> bool:
    """Whether `searchsorted` has a sorter on the device, whose range is checked."""
    sorter = call.argument("sorter")
    return call.on_device(sorter) and sorter.numel() > 0


@_predicate("std-on-device")
def std_on_device(call: Call) -> bool:
    """Whether `normal` has standard deviations on the device: their sign is checked."""
    std = call.argument("std")
    return call.on_device(std) and std.numel() > 0


@_predicate("lengths-checked")
def checks_lengths(call: Call) -> bool:
    """Whether `segment_reduce` checks lengths on the device."""
    return call.on_device(call.argument("lengths")) and not call.argument("unsafe", False)


@_predicate("integer-zero-point")
def integer_zero_point(call: Call) -> bool:
    """Whether quantization has integer zero points on the device: their range is checked."""
    zero_point = call.argument("zero_point")
    return call.on_device(zero_point) and not zero_point.is_floating_point()


@_predicate("per-row-observer")
def per_row_observer(call: Call) -> bool:
    """Whether a fused observer quantizes per row."""
    return call.on_device(call.subject) and bool(call.argument("per_row_fake_quant", False))


@_predicate("mask-check")
def mask_check(call: Call) -> bool:
    """Whether a nested tensor is made from a mask on the device that is checked."""
    return call.on_device(call.argument("mask")) and bool(call.argument("mask_check", True))


@_predicate("long-slices")
def long_slices(call: Call) -> int:
    """Count the slices that `mode` sorts one after the other because they are too long for one kernel."""
    subject = call.subject
    if not call.on_device(subject) or subject.dim() == 0 or subject.numel() == 0:
        return 0
    length = subject.size(call.argument("dim", -1))
    return 0 if length <= _MODE_IN_ONE_KERNEL else subject.numel() // length


# Linear algebra


@_predicate("check-errors")
def check_errors(call: Call) -> bool:
    """Whether an ``_ex`` function is asked to check its error codes."""
    return bool(on_device(call)) and bool(call.argument("check_errors", False))


@_predicate("iterative-svd")
def iterative_svd(call: Call) -> bool:
    """Whether a singular value decomposition uses a driver whose convergence is checked (not ``gesvd``)."""
    return bool(not_empty(call)) and call.argument("driver") != "gesvd"


@_predicate("hermitian")
def hermitian(call: Call) -> bool:
    """Whether a matrix on the device is declared Hermitian."""
    return bool(not_empty(call)) and bool(call.argument("hermitian", False))


@_predicate("not-hermitian")
def not_hermitian(call: Call) -> bool:
    """Whether a matrix on the device is not declared Hermitian."""
    return bool(not_empty(call)) and not call.argument("hermitian", False)


@_predicate("weights-given")
def weight_checks(call: Call) -> int:
    """Count the checks that weights add to a covariance: one for each kind, and one for their sum."""
    if not call.on_device(call.subject):
        return 0
    weights = sum(call.argument(name) is not None for name in ("fweights", "aweights"))
    return weights + 1 if weights else 0


# Copies hidden in operators


@_predicate("lengths-on-device")
def lengths_on_device(call: Call) -> int:
    """Count the length arguments of the CTC loss that are on the device."""
    return sum(call.on_device(call.argument(name)) for name in ("input_lengths", "target_lengths"))


@_predicate("pairs-to-device")
def pairs_to_device(call: Call) -> int:
    """Count the blocking host-to-device copies that a list copy makes."""
    if call.argument("non_blocking", False):
        return 0
    pairs = zip(call.argument("self", ()), call.argument("src", ()), strict=False)
    return sum(call.on_device(target) and call.is_cpu(source) for target, source in pairs)


@_predicate("pairs-to-host")
def pairs_to_host(call: Call) -> int:
    """Count the blocking device-to-host copies that a list copy makes."""
    if call.argument("non_blocking", False):
        return 0
    pairs = zip(call.argument("self", ()), call.argument("src", ()), strict=False)
    return sum(call.is_cpu(target) and call.on_device(source) for target, source in pairs)


# Autograd nodes, called with the node as `func`


@_predicate("saved-input")
def saved_input(call: Call) -> bool:
    """Whether the input that the node saved is on the device and has more than one element."""
    saved: Any = getattr(call.func, "_saved_self", None)
    return call.on_device(saved) and saved.dim() > 0 and saved.numel() > 1
