"""The table of waits: its rows hold together, and its predicates tell what waits from what does not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gapless.emulation.waits.predicates import PREDICATES, Call
from gapless.emulation.waits.table import COLUMNS, PATH, WaitCondition, parse, waits_table
from gapless.torch_internals import VERSION

aten = torch.ops.aten
DOCS = Path(__file__).parents[2] / "docs" / "waits.md"
HEADER = "\t".join(COLUMNS)
GOOD = "op\taten::nonzero\ton-device\t1\tsize\ta reason\ta/file.cpp: function\t2.13.0\t3 calls"

NOT_IN_EVERY_TORCH = frozenset({"aten::cholesky", "aten::linalg_matrix_sqrth"})
"""Operators of the table that some supported version of torch lacks."""


class Device(set):  # type: ignore[type-arg]
    """Tensors said to be on the device, by storage: views of them are there too."""

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self.add(tensor.untyped_storage()._cdata)
        KEPT.append(tensor)
        return tensor

    def __call__(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            tensor = tensor._values()
        return tensor.untyped_storage()._cdata in self


KEPT: list[torch.Tensor] = []
DEVICE = Device()


def dev(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` on the device."""
    return DEVICE.put(tensor)


X = dev(torch.rand(4, 3))
HOST_X = torch.rand(4, 3)
MASK = dev(torch.ones(4, dtype=torch.bool))
HOST_MASK = torch.ones(4, 3, dtype=torch.bool)
IDS = dev(torch.tensor([0, 1]))
HOST_IDS = torch.tensor([0, 1])
SCORED = (dev(torch.ones(2, 3)), IDS, dev(torch.ones(3)))
SCALAR = dev(torch.tensor(1.0))
HOST_SCALAR = torch.tensor(1.0)
COUNTS = dev(torch.tensor([1, 2]))
MATRIX = dev(torch.eye(3))
MANY = dev(torch.arange(300))
EMPTY = dev(torch.empty(0))
SPARSE = torch.sparse_coo_tensor(HOST_IDS.repeat(2, 1), torch.ones(2), (2, 2), check_invariants=False)
DEVICE.put(SPARSE._values())
COALESCED = SPARSE.coalesce()
TRANSPOSED = COALESCED.t()
for _matrix in (COALESCED, TRANSPOSED):
    DEVICE.put(_matrix._values())


class Node:
    """An autograd node with saved values."""

    def __init__(self, saved: torch.Tensor) -> None:
        self._saved_self = saved


def waits(func: Any, *args: Any, **kwargs: Any) -> dict[str, int]:
    """Waits by mechanism that the table has for this call."""
    if hasattr(func, "_schema"):
        rows = waits_table().for_op(func._schema.name, func._schema.overload_name)
    elif isinstance(func, Node):
        rows = waits_table().for_node("ProdBackward0")
    else:
        rows = next(rows for name, rows in waits_table().calls().items() if _resolve(name) is func)
    counts: dict[str, int] = {}
    for row in rows:
        times = int(PREDICATES[row.when](Call(func, args, kwargs, DEVICE))) * row.waits
        if times:
            counts[row.mechanism] = counts.get(row.mechanism, 0) + times
    return counts


def _resolve(dotted: str) -> Any:
    target: Any = torch
    for name in dotted.split(".")[1:]:
        target = getattr(target, name)
    return target


def case(expected: dict[str, int], func: Any, *args: Any, **kwargs: Any) -> Any:
    """One call with the waits it must have."""
    words = getattr(func, "__name__", type(func).__name__)
    return pytest.param(expected, func, args, kwargs, id=f"{words}-{_words(args, kwargs)}-{expected}")


def _words(args: Any, kwargs: Any) -> str:
    def word(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            place = "device" if DEVICE(value) else "host"
            return f"{place}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return "+".join(word(item) for item in value)
        return str(value)

    return ",".join([*(word(arg) for arg in args), *(f"{k}={word(v)}" for k, v in kwargs.items())])


NONE: dict[str, int] = {}

WAITING = [
    case({"read": 1}, aten._local_scalar_dense.default, SCALAR),
    case({"read": 1}, aten.equal.default, X, dev(torch.rand(4, 3))),
    case({"read": 1}, aten.equal.default, X[:, :2], X[:, 1:]),
    case({"read": 1}, aten.allclose.default, X, X),
    case({"read": 1}, aten.masked_fill.Tensor, X, dev(HOST_MASK.clone()), SCALAR),
    case({"read": 1}, aten.index_fill_.int_Tensor, X, 0, IDS, SCALAR),
    case({"read": 1}, aten.fill_.Tensor, HOST_X, SCALAR),
    case({"read": 2}, aten.linspace.Tensor_Tensor, SCALAR, SCALAR, 5),
    case({"read": 1}, aten.logspace.Scalar_Tensor, 0.0, SCALAR, 5),
    case({"read": 1}, torch.Tensor.tolist, X),
    case({"size": 1}, aten.nonzero.default, X),
    case({"size": 1}, aten.masked_select.default, X, dev(HOST_MASK.clone())),
    case({"size": 1}, aten.masked_scatter_backward.default, X, dev(HOST_MASK.clone()), [12]),
    case({"size": 1}, aten.index.Tensor, X, [MASK]),
    case({"size": 2}, aten.index.Tensor, X, [MASK, dev(torch.ones(3, dtype=torch.uint8))]),
    case({"size": 1, "h2d": 1}, aten.index.Tensor, X, [MASK, HOST_IDS]),
    case({"h2d": 1}, aten.index.Tensor, X, [HOST_IDS]),
    case({"h2d": 2}, aten.index.Tensor, X, [HOST_IDS, HOST_IDS]),
    case({"h2d": 1}, aten._unsafe_index.Tensor, X, [None, HOST_IDS]),
    case({"size": 1}, aten.index_put_.default, X, [MASK], X),
    case({"size": 1}, aten.index_put_.default, X, [MASK], SCALAR),
    case({"size": 1}, aten.index_put.default, X, [MASK], X, True),
    case({"size": 1, "h2d": 1}, aten.index_put_.default, X, [MASK], HOST_SCALAR, True),
    case({"h2d": 1}, aten.index_put_.default, X, [IDS], HOST_SCALAR),
    case({"d2h": 1}, aten.index_put_.default, torch.ones(4), [IDS], HOST_SCALAR),
    case({"h2d": 2}, aten.index_put_.default, X, [HOST_IDS], HOST_SCALAR),
    case({"h2d": 1}, aten.index_put_.default, X, [HOST_MASK], HOST_SCALAR),
    case({"h2d": 2}, aten.index_put_.default, X, [HOST_MASK], X, True),
    case({"size": 1, "h2d": 1}, aten._index_put_impl_.default, X, [MASK, IDS], HOST_SCALAR),
    case({"size": 1}, aten._unique2.default, X),
    case({"size": 1}, aten.unique_dim.default, X, 0),
    case({"size": 1}, aten.unique_consecutive.default, X),
    case({"size": 1, "read": 1}, aten.repeat_interleave.Tensor, COUNTS),
    case({"size": 1, "read": 1}, aten.bincount.default, COUNTS),
    case({"size": 1, "read": 1}, aten.bincount.default, COUNTS, None, 100),
    case({"size": 1}, aten.bincount.default, dev(torch.ones(2, dtype=torch.uint8))),
    case({"size": 3}, aten.isin.Tensor_Tensor, IDS, MANY),
    case({"size": 3}, aten.isin.Scalar_Tensor, 1, MANY),
    case({"size": 1}, torch.nn.functional.one_hot, IDS),
    case({"size": 1}, torch.nn.functional.cross_entropy, *SCORED, label_smoothing=0.1),
    case({"size": 1}, torch.nn.functional.one_hot, IDS, num_classes=-1),
    case({"size": 1}, aten._to_sparse.default, X),
    case({"size": 2}, aten._to_sparse_csr.default, X),
    case({"size": 1}, aten._coalesce.default, SPARSE),
    case({"size": 1}, aten._to_sparse_csr.default, SPARSE),
    case({"size": 1}, aten.mm.default, SPARSE, X),
    case({"size": 1}, aten.mm.default, TRANSPOSED, X),
    case({"size": 1}, aten.mm.default, X, COALESCED),
    case({"size": 1}, aten.addmm.default, X, SPARSE, X),
    case({"size": 1}, aten._sparse_addmm.default, X, SPARSE, X),
    case({"size": 1}, aten.mv.default, SPARSE, X[0]),
    case({"size": 1}, aten.hspmm.default, SPARSE, X),
    case({"size": 1}, aten._sparse_sparse_matmul.default, COALESCED, COALESCED),
    case({"size": 2}, aten._sparse_sparse_matmul.default, SPARSE, COALESCED),
    case({"size": 2}, aten.mm.default, COALESCED, SPARSE),
    case({"size": 3}, aten.mm.default, TRANSPOSED, SPARSE),
    case({"size": 1}, aten._sparse_softmax.default, SPARSE, 1, False),
    case({"size": 1}, aten._padded_dense_to_jagged_forward.default, X, [COUNTS]),
    case({"d2h": 2}, torch.sparse_coo_tensor, dev(HOST_IDS.repeat(2, 1)), COUNTS),
    case({"values": 2}, aten.histc.default, X),
    case({"values": 2}, aten.histc.default, X, 10, 3, 3),
    case({"read": 2}, aten.searchsorted.Tensor, X[0], X[1], sorter=dev(torch.arange(3))),
    case({"read": 2}, aten.normal.Tensor_Tensor, X, X),
    case({"read": 2}, aten.normal.float_Tensor, 0.0, X),
    case({"read": 1}, aten.normal.Tensor_Tensor_out, X, X, out=X),
    case({"read": 2}, aten.segment_reduce.default, X, "sum", lengths=COUNTS),
    case({"values": 3, "h2d": 3}, aten.mode.default, dev(torch.rand(3, 2049))),
    case({"values": 2, "h2d": 2}, aten.mode.default, dev(torch.rand(2049, 2)), 0),
    case({"read": 2}, aten.fake_quantize_per_channel_affine_cachemask.default, X, X[0], COUNTS, 1, 0, 7),
    case({"values": 3}, aten.linalg_matrix_exp.default, MATRIX),
    case({"read": 1}, torch.cov, X),
    case({"read": 1}, torch.Tensor.corrcoef, X),
    case({"read": 3}, torch.cov, X, fweights=COUNTS),
    case({"read": 4}, torch.cov, X, fweights=COUNTS, aweights=X[0]),
    case({"read": 1, "d2h": 1}, aten._nested_tensor_from_mask.default, X, MASK),
    case({"d2h": 1}, aten._nested_tensor_from_mask.default, X, MASK, False),
    case({"read": 1}, aten._nested_tensor_from_mask_left_aligned.default, X, MASK),
    case({"status": 1}, aten._linalg_check_errors.default, COUNTS, "linalg.inv", is_matrix=True),
    case({"status": 1}, aten.linalg_inv_ex.default, MATRIX, check_errors=True),
    case({"status": 1}, aten.linalg_cholesky_ex.default, MATRIX, check_errors=True),
    case({"status": 1}, aten._linalg_eigh.default, MATRIX),
    case(
        {"status": 1},
        aten.cholesky.default if VERSION < (2, 14) else aten.linalg_matrix_sqrth.default,
        MATRIX,
    ),
    case({"status": 1}, aten.linalg_lstsq.default, MATRIX, MATRIX),
    case({"status": 2}, aten._linalg_svd.default, MATRIX),
    case({"status": 2}, aten._linalg_svd.default, MATRIX, driver="gesvdj"),
    case({"status": 1}, aten._linalg_svd.default, MATRIX, driver="gesvd"),
    case({"status": 1, "read": 1}, aten.linalg_eig.default, MATRIX),
    case({"status": 2}, aten.linalg_pinv.atol_rtol_tensor, MATRIX),
    case({"status": 1}, aten.linalg_pinv.atol_rtol_tensor, MATRIX, hermitian=True),
    case({"h2d": 1}, aten.where.self, dev(HOST_MASK.clone()), X, HOST_SCALAR),
    case({"h2d": 2}, aten.where.self, dev(HOST_MASK.clone()), HOST_SCALAR, HOST_SCALAR),
    case({"h2d": 1}, aten.bernoulli_.Tensor, X, HOST_X),
    case({"h2d": 3}, aten._ctc_loss.default, X, X, [1], [1]),
    case({"d2h": 2, "h2d": 3}, aten._ctc_loss.Tensor, X, X, COUNTS, COUNTS),
    case({"h2d": 3}, aten._ctc_loss.Tensor, X, X, HOST_IDS, HOST_IDS),
    case({"h2d": 1, "d2h": 1}, aten._foreach_copy_.default, [X, X, HOST_X], [X, HOST_X, X]),
    case({"size": 1}, Node(X), X),
    case({"read": 1}, aten.masked_fill.Tensor_out, X, MASK, SCALAR, out=X),
    case({"read": 1}, aten.index_fill.int_Tensor_out, X, 0, IDS, SCALAR, out=X),
    case({"read": 1}, aten.fill.Tensor_out, HOST_X, SCALAR, out=HOST_X),
    case({"read": 2}, aten.linspace.Tensor_Tensor_out, SCALAR, SCALAR, 4, out=X),
    case({"size": 1, "read": 1}, aten.repeat_interleave.Tensor_out, COUNTS, out=IDS),
    case({"h2d": 1}, aten.bernoulli.Tensor, X, HOST_X),
    case({"h2d": 1}, aten.bernoulli.Tensor_out, X, HOST_X, out=X),
    case({"d2h": 1}, aten.index_put.default, HOST_X, [IDS], HOST_SCALAR),
    case({"size": 1}, aten._index_put_impl.default, X, [MASK], X),
    case({"h2d": 1}, aten._index_put_impl.out, X, [HOST_IDS], SCALAR, out=X),
    case({"d2h": 1}, aten._index_put_impl.default, HOST_X, [IDS], HOST_SCALAR),
    case({"h2d": 1}, aten._foreach_copy.default, [X, X], [X, HOST_X]),
    case({"d2h": 1}, aten._foreach_copy.out, [HOST_X], [X], out=[HOST_X]),
]

QUIET = [
    case(NONE, aten._local_scalar_dense.default, HOST_SCALAR),
    case(NONE, aten.equal.default, X, X),
    case(NONE, aten.equal.default, X, IDS),
    case(NONE, aten.equal.default, EMPTY, dev(torch.empty(0))),
    case(NONE, aten.equal.default, HOST_X, HOST_X.clone()),
    case(NONE, aten.allclose.default, HOST_X, HOST_X),
    case(NONE, aten.masked_fill.Tensor, X, dev(HOST_MASK.clone()), HOST_SCALAR),
    case(NONE, aten.masked_fill.Scalar, X, dev(HOST_MASK.clone()), 0.0),
    case(NONE, aten.index_fill_.int_Scalar, X, 0, IDS, 0.0),
    case(NONE, aten.fill_.Tensor, X, SCALAR),
    case(NONE, aten.fill_.Tensor, X, HOST_SCALAR),
    case(NONE, aten.linspace.Tensor_Tensor, HOST_SCALAR, HOST_SCALAR, 5),
    case(NONE, torch.Tensor.tolist, HOST_X),
    case(NONE, torch.Tensor.tolist, EMPTY),
    case(NONE, aten.nonzero.default, HOST_X),
    case(NONE, aten.nonzero_static.default, X, size=3),
    case(NONE, aten.masked_scatter.default, X, dev(HOST_MASK.clone()), X),
    case(NONE, aten.index.Tensor, X, [IDS]),
    case(NONE, aten.index.Tensor, X, [None, IDS]),
    case(NONE, aten.index.Tensor, X, [HOST_MASK]),
    case(NONE, aten.index.Tensor, HOST_X, [HOST_MASK]),
    case(NONE, aten.index.Tensor, HOST_X, [HOST_IDS]),
    case(NONE, aten.index_put_.default, X, [MASK], HOST_SCALAR),
    case(NONE, aten.index_put_.default, X, [None, dev(torch.ones(3, dtype=torch.bool))], HOST_SCALAR),
    case(NONE, aten.index_put_.default, X, [MASK], torch.ones(1)),
    case(NONE, aten.index_put_.default, X, [IDS], X),
    case(NONE, aten.index_put_.default, X, [IDS], SCALAR),
    case(NONE, aten.index_put_.default, X, [IDS], X, True),
    case(NONE, aten.index_put_.default, HOST_X, [HOST_MASK], HOST_SCALAR),
    case(NONE, aten._unique2.default, HOST_X),
    case(NONE, aten._unique2.default, EMPTY),
    case(NONE, aten._linalg_eigh.default, EMPTY),
    case(NONE, aten.cholesky_inverse.default, EMPTY),
    case(NONE, torch.quantile, X, X[0]),
    case(NONE, torch.Tensor.nanquantile, X, X[0]),
    case(NONE, aten.repeat_interleave.Tensor, COUNTS, output_size=3),
    case(NONE, aten.repeat_interleave.Tensor, HOST_IDS),
    case(NONE, aten.bincount.default, HOST_IDS),
    case(NONE, aten.bincount.default, dev(torch.empty(0, dtype=torch.long))),
    case(NONE, aten.isin.Tensor_Tensor, IDS, COUNTS),
    case(NONE, aten.isin.Tensor_Tensor, IDS, MANY, assume_unique=True),
    case(NONE, aten.isin.Tensor_Tensor, HOST_IDS, torch.arange(300)),
    case(NONE, torch.nn.functional.one_hot, IDS, 4),
    case(NONE, torch.nn.functional.cross_entropy, *SCORED),
    case(NONE, torch.nn.functional.cross_entropy, *SCORED[:2], label_smoothing=0.1),
    case(NONE, torch.nn.functional.cross_entropy, *SCORED, label_smoothing=0.1, reduction="sum"),
    case(NONE, torch.nn.functional.one_hot, IDS, num_classes=4),
    case(NONE, torch.nn.functional.one_hot, HOST_IDS),
    case(NONE, aten._to_sparse.default, HOST_X),
    case(NONE, aten._to_sparse_csr.default, HOST_X),
    case(NONE, aten._to_sparse_csr.default, COALESCED),
    case(NONE, aten.mm.default, COALESCED, X),
    case(NONE, aten.mm.default, X, X),
    case(NONE, aten.addmm.default, X, COALESCED, X),
    case(NONE, aten.mm.default, HOST_X.to_sparse().t(), HOST_X),
    case(NONE, aten._sparse_softmax.default, COALESCED, 1, False),
    case(NONE, aten._coalesce.default, SPARSE.to_sparse_coo().coalesce().clone()),
    case(NONE, aten._padded_dense_to_jagged_forward.default, X, [COUNTS], 7),
    case(NONE, torch.sparse_coo_tensor, dev(HOST_IDS.repeat(2, 1)), COUNTS, (2, 2)),
    case(NONE, torch.sparse_coo_tensor, HOST_IDS.repeat(2, 1), HOST_IDS),
    case(NONE, aten.histc.default, X, 10, 0, 1),
    case(NONE, aten.histc.default, HOST_X),
    case(NONE, aten.searchsorted.Tensor, X[0], X[1]),
    case(NONE, aten.normal.Tensor_float, X, 1.0),
    case(NONE, aten.normal.Tensor_Tensor, HOST_X, HOST_X),
    case(NONE, aten.segment_reduce.default, X, "sum", lengths=COUNTS, unsafe=True),
    case(NONE, aten.segment_reduce.default, X, "sum", offsets=COUNTS),
    case(NONE, aten.mode.default, dev(torch.rand(3, 2048))),
    case(NONE, aten.mode.default, torch.rand(3, 2049)),
    case(NONE, aten.mode.default, SCALAR),
    case(NONE, aten.fake_quantize_per_channel_affine_cachemask.default, X, X[0], X[0], 1, 0, 7),
    case(NONE, aten._fused_moving_avg_obs_fq_helper.default, X, *([X] * 6), 0.1, 0, 7, 1),
    case({"read": 2}, aten._fused_moving_avg_obs_fq_helper.default, X, *([X] * 6), 0.1, 0, 7, 1, True),
    case(NONE, aten.linalg_matrix_exp.default, HOST_X),
    case(NONE, torch.cov, HOST_X),
    case(NONE, torch.cov, HOST_X, fweights=HOST_IDS),
    case(NONE, aten.linalg_inv_ex.default, MATRIX),
    case(NONE, aten.linalg_inv_ex.default, HOST_X, check_errors=True),
    case(NONE, aten._linalg_check_errors.default, HOST_IDS, "linalg.inv", is_matrix=True),
    case(NONE, aten._linalg_svd.default, HOST_X),
    case(NONE, aten.linalg_pinv.atol_rtol_tensor, HOST_X),
    case(NONE, aten.linalg_qr.default, MATRIX),
    case(NONE, aten._linalg_det.default, MATRIX),
    case(NONE, aten.where.self, dev(HOST_MASK.clone()), X, SCALAR),
    case(NONE, aten.where.self, HOST_MASK, HOST_X, HOST_SCALAR),
    case(NONE, aten.bernoulli_.Tensor, X, X),
    case(NONE, aten.bernoulli.Tensor, X, X),
    case(NONE, aten.masked_fill.Scalar_out, X, MASK, 1.0, out=X),
    case(NONE, aten._ctc_loss.Tensor, HOST_X, HOST_X, HOST_IDS, HOST_IDS),
    case(NONE, aten._foreach_copy_.default, [X, X], [X, HOST_X], True),
    case(NONE, aten._foreach_copy_.default, [X, HOST_X], [X, HOST_X]),
    case(NONE, aten.sort.default, X),
    case(NONE, aten.topk.default, X, 2),
    case(NONE if VERSION >= (2, 5) else {"read": 2}, aten.multinomial.default, X, 1),
    case(NONE, aten.embedding_renorm_.default, X, IDS, 1.0, 2.0),
    case(NONE, aten.add.Tensor, X, HOST_SCALAR),
    case(NONE, Node(HOST_X), HOST_X),
    case(NONE, Node(SCALAR), SCALAR),
]


@pytest.mark.parametrize(("expected", "func", "args", "kwargs"), [*WAITING, *QUIET])
def test_a_call_waits_as_often_as_the_sources_say(
    expected: dict[str, int], func: Any, args: Any, kwargs: Any
) -> None:
    assert waits(func, *args, **kwargs) == expected


def test_every_predicate_has_a_call_that_fires_and_one_that_does_not() -> None:
    fired: dict[str, set[bool]] = {name: set() for name in PREDICATES}
    for case in [*WAITING, *QUIET]:
        _, func, args, kwargs = case.values
        for row in _rows_of(func):
            fired[row.when].add(bool(PREDICATES[row.when](Call(func, args, kwargs, DEVICE))))
    # Those of an older torch fire there alone.
    incomplete = {name for name, outcomes in fired.items() if outcomes != {True, False}}
    assert {name for name in incomplete if "before-torch" not in name} == set()


def _rows_of(func: Any) -> tuple[WaitCondition, ...]:
    if hasattr(func, "_schema"):
        return waits_table().for_op(func._schema.name, func._schema.overload_name)
    if isinstance(func, Node):
        return waits_table().for_node("ProdBackward0")
    return next(rows for name, rows in waits_table().calls().items() if _resolve(name) is func)


def test_every_predicate_is_used_and_documented() -> None:
    assert set(PREDICATES) == {row.when for row in waits_table().rows}
    assert all(predicate.__doc__ for predicate in PREDICATES.values())


@pytest.mark.parametrize("row", waits_table().rows, ids=lambda row: f"{row.name}-{row.when}-{row.mechanism}")
def test_a_row_is_about_something_that_exists(row: WaitCondition) -> None:
    if row.scope == "op":
        base, _, overload = row.name.removeprefix("aten::").partition(".")
        packet = getattr(aten, base, None)
        exists = packet is not None and (not overload or overload in packet.overloads())
        assert exists or row.name in NOT_IN_EVERY_TORCH
    elif row.scope == "call":
        assert callable(_resolve(row.name))
    else:
        assert re.fullmatch(r"[A-Z]\w+Backward\d", row.name)
    assert re.match(r"(aten|torch)/\S+\.(cpp|cu|h)\b.*: ?\w|measured$", row.source)
    assert row.reason[0].islower() or row.reason.startswith("CUDA")
    assert not row.reason.endswith(".")


def test_no_row_is_repeated() -> None:
    keys = [(row.scope, row.name, row.when, row.mechanism) for row in waits_table().rows]
    assert len(keys) == len(set(keys))


def test_rows_without_an_overload_hold_for_all() -> None:
    for overload in ("", "default", "out"):
        assert [row.name for row in waits_table().for_op("aten::nonzero", overload)] == ["aten::nonzero"]
    assert waits_table().for_op("aten::fill_", "Scalar") == ()
    assert len(waits_table().for_op("aten::fill_", "Tensor")) == 1
    assert waits_table().for_op("aten::add", "Tensor") == ()
    assert waits_table().for_call("torch.add") == ()


def test_variants_of_one_operator_wait_alike() -> None:
    """In place, into a given tensor, or neither: enumerated from torch's own schemas."""
    families: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            overload = schema.overload_name
            kind = "" if overload == "out" else overload.removesuffix("_out")
            family = families.setdefault((schema.name.removesuffix("_"), kind), [])
            family.append((schema.name, overload))
    several = [family for family in families.values() if len(family) > 1]
    assert len(several) > 500
    unlike = []
    for family in several:
        conditions = {
            name: {(row.when, row.mechanism) for row in waits_table().for_op(*name)}
            for name in sorted(family)
        }
        if len(set(map(frozenset, conditions.values()))) > 1:
            unlike.append(conditions)
    assert unlike == []


def test_nodes_of_the_table_are_what_autograd_makes() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    nodes = {type(y.grad_fn).__name__ for y in (x.prod(), x.prod(0), x.cumprod(0))}
    assert nodes == {row.name for row in waits_table().rows if row.scope == "node"}
    node = x.cumprod(0).grad_fn
    assert node is not None
    assert not PREDICATES["saved-input"](Call(node, (x,), {}, DEVICE))
    assert PREDICATES["saved-input"](Call(node, (x,), {}, lambda tensor: True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "waits.tsv: no header row"),
        ("# only\n\n", "waits.tsv: no header row"),
        (GOOD, "waits.tsv:1: the first row must be the columns scope, name"),
        (f"{HEADER}\nop\taten::nonzero", "waits.tsv:2: 2 columns where 9 are expected"),
        (f"{HEADER}\n# c\n{GOOD.replace('on-device', '')}", "waits.tsv:3: when is empty"),
        (f"{HEADER}\n{GOOD.replace('a reason', ' a reason')}", "waits.tsv:2: reason is empty or has spaces"),
        (
            f"{HEADER}\n{GOOD.replace('op', 'operator', 1)}",
            "waits.tsv:2: scope 'operator' must be one of op, call",
        ),
        (f"{HEADER}\n{GOOD.replace('aten::', '')}", "waits.tsv:2: an operator's name starts with aten::"),
        (
            f"{HEADER}\n{GOOD.replace('op', 'call', 1).replace('aten::', '')}",
            "waits.tsv:2: a call is named by",
        ),
        (f"{HEADER}\n{GOOD.replace('1', '-1')}", "waits.tsv:2: waits must be a whole number, not '-1'"),
        (
            f"{HEADER}\n{GOOD.replace('size', 'speed')}",
            "waits.tsv:2: mechanism 'speed' must be one of read, size",
        ),
    ],
)
def test_malformed_rows_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


def test_a_good_row_is_read() -> None:
    only = parse(f"# a comment\n{HEADER}\n\n{GOOD}\n").rows
    assert only == (
        WaitCondition(
            "op",
            "aten::nonzero",
            "on-device",
            1,
            "size",
            "a reason",
            "a/file.cpp: function",
            "2.13.0",
            "3 calls",
        ),
    )


def test_reading_the_table_needs_no_torch() -> None:
    code = (
        "import sys; from gapless.emulation.waits.table import waits_table; waits_table(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class TestCall:
    """How a call resolves the names of its arguments."""

    def test_an_operator_by_position_keyword_and_default(self) -> None:
        call = Call(aten.histc.default, (X, 10), {"max": 3}, DEVICE)
        assert [call.argument(name) for name in ("bins", "min", "max")] == [10, 0, 3]
        assert call.argument("self") is X
        assert call.argument("nothing") is None
        assert call.argument("nothing", "default") == "default"

    def test_a_python_function(self) -> None:
        def function(a: int, b: int = 2, *, c: int = 3) -> None: ...

        call = Call(function, (1,), {"c": 4}, DEVICE)
        assert [call.argument(name) for name in ("a", "b", "c")] == [1, 2, 4]

    def test_a_builtin_has_the_names_of_its_operator(self) -> None:
        assert Call(torch.nn.functional.one_hot, (IDS, 5), {}, DEVICE).argument("num_classes") == 5
        assert Call(torch.nn.functional.one_hot, (IDS,), {}, DEVICE).argument("num_classes") == -1
        assert Call(torch.Tensor.cov, (X,), {}, DEVICE).argument("correction") == 1
        assert Call(torch.cov, (), {"input": X}, DEVICE).argument("self") is X
        sparse = Call(torch.sparse_coo_tensor, (IDS, X, (2, 2)), {}, DEVICE)
        assert sparse.argument("size") == (2, 2)
        assert Call(torch.sparse_coo_tensor, (IDS, X), {"size": (2,)}, DEVICE).argument("size") == (2,)

    def test_a_builtin_without_an_operator_has_no_names(self) -> None:
        assert Call(torch.Tensor.tolist, (X,), {}, DEVICE).argument("anything", 1) == 1
        assert Call(dict, (), {}, DEVICE).argument("anything", 2) == 2

    def test_tensors_are_found_in_lists(self) -> None:
        call = Call(aten.index_put_.default, (X, [None, IDS]), {"values": SCALAR}, DEVICE)
        assert [id(t) for t in call.tensors()] == [id(X), id(IDS), id(SCALAR)]

    def test_only_tensors_have_a_place(self) -> None:
        call = Call(aten.nonzero.default, (X,), None, DEVICE)
        assert call.on_device(X)
        assert not call.is_cpu(X)
        assert call.is_cpu(HOST_X)
        for other in (None, 1, [X], "x"):
            assert not call.on_device(other)
            assert not call.is_cpu(other)


def _looked_at() -> list[str]:
    section = DOCS.read_text(encoding="utf-8").split("## Looked at: does not wait", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"`(\w+(?:\.\w+)?)`", section)


def test_what_is_said_not_to_wait_exists_and_has_no_row_for_all_overloads() -> None:
    names = _looked_at()
    assert len(names) > 100
    missing = [name for name in names if not hasattr(aten, name.partition(".")[0])]
    assert missing == []
    contradicted = []
    for name in names:
        base, _, overload = name.partition(".")
        contradicted += [
            row.name for row in waits_table().for_op(f"aten::{base}", overload) if row.scope == "op"
        ]
    assert contradicted == []


def test_the_docs_explain_every_column_and_predicate_family() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert all(f"`{column}`" in text for column in COLUMNS)
    assert PATH.name in text


def _on(call: Callable[[], Any]) -> list[str]:
    """Operators that `call` runs inside, as the profiler sees them."""
    from torch.autograd.profiler import profile

    with profile() as profiled:
        call()
    return [event.name.removeprefix("aten::") for event in profiled.function_events or ()]


class TestSharedCode:
    """Where CPU and CUDA share the code around the kernel, the CPU shows which values are read."""

    @pytest.mark.parametrize(
        ("call", "reads"),
        [
            (lambda: torch.normal(HOST_X, HOST_X), 2),
            (lambda: torch.normal(0.0, HOST_X), 2),
            (lambda: torch.normal(HOST_X, 1.0), 0),
            (lambda: HOST_IDS.repeat_interleave(HOST_IDS), 2),
            (lambda: HOST_IDS.repeat_interleave(HOST_IDS, output_size=1), 0),
            (lambda: torch.segment_reduce(HOST_X, "sum", lengths=torch.tensor([1, 3])), 2),
            (lambda: torch.segment_reduce(HOST_X, "sum", lengths=torch.tensor([1, 3]), unsafe=True), 0),
            (lambda: torch.searchsorted(HOST_X[0], HOST_X[1], sorter=HOST_X[0].argsort()), 2),
            (lambda: torch.allclose(HOST_X, HOST_X), 1),
            (lambda: HOST_X.masked_fill(HOST_MASK, HOST_SCALAR), 1),
            (lambda: HOST_X.index_fill(0, HOST_IDS, HOST_SCALAR), 1),
        ],
    )
    def test_values_read(self, call: Callable[[], Any], reads: int) -> None:
        assert _on(call).count("item") == reads

    def test_multinomial_asserts_on_the_device(self) -> None:
        inside = _on(lambda: torch.multinomial(HOST_X, 1))
        asserted = 2 if VERSION >= (2, 5) else 0
        assert (inside.count("_assert_async"), inside.count("item")) == (asserted, 2)
        row = next(row for row in waits_table().for_op("aten::multinomial", "") if row.waits == 2)
        call = Call(aten.multinomial.default, (X, 1), {}, DEVICE)
        assert bool(PREDICATES[row.when](call)) == (asserted == 0)

    @pytest.mark.parametrize(
        ("call", "nodes"),
        [
            (lambda x: x.prod(), {"nonzero": 1, "item": 0}),
            (lambda x: x.prod(0).sum(), {"nonzero": 0, "item": 1}),
            (lambda x: x.cumprod(0).sum(), {"nonzero": 0, "item": 1}),
        ],
    )
    def test_backward_formulas_that_branch(
        self, call: Callable[[torch.Tensor], torch.Tensor], nodes: dict[str, int]
    ) -> None:
        result = call(torch.rand(3, 2).add(0.1).requires_grad_())
        inside = _on(result.backward)
        assert {name: inside.count(name) for name in nodes} == nodes


ASSIGNED: dict[str, tuple[Callable[[Any, Any, Any], None], list[str]]] = {
    "a number by a mask": (lambda y, mask, index: y.__setitem__(mask, 0), []),
    "a number by a mask of rows": (lambda y, mask, index: y.__setitem__(mask[:, 0], 0.5), []),
    "a number by a mask in a column": (lambda y, mask, index: y.__setitem__((mask[:, 0], 1), 0), []),
    "a 0-dim tensor of the host": (lambda y, mask, index: y.__setitem__(mask, torch.tensor(0.0)), []),
    # Since torch 2.15 a number that is written through an index stays one.
    "a number by positions": (
        lambda y, mask, index: y.__setitem__(index, 0),
        ["h2d", "h2d"] if VERSION < (2, 15) else [],
    ),
    "a 0-dim tensor of the host by positions": (
        lambda y, mask, index: y.__setitem__(index, torch.tensor(0.0)),
        ["h2d", "h2d"],
    ),
    "a value of the device": (lambda y, mask, index: y.__setitem__(mask, y.sum()), ["size"] * 3),
}
"""What is assigned where, and what the host waits for in both passes."""


@pytest.mark.parametrize("name", ASSIGNED)
def test_assignments_and_their_backward(machine: Any, name: str) -> None:
    assign, expected = ASSIGNED[name]
    x = torch.ones(4, 3, device="cuda", requires_grad=True)
    mask = torch.ones(4, 3, device="cuda") > 0
    index = torch.arange(2, device="cuda")
    y = x * 2
    assign(y, mask, index)
    y.sum().backward()
    assert [mechanism for _, mechanism, times in machine.kinds() for _ in range(times)] == expected
    assert x.grad is not None
