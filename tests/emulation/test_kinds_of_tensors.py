"""Tensors that are not plain dense ones, and what torch builds on top of operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from gapless.emulation.emulator import Emulator
from gapless.errors import NotEmulated

FIRST, SECOND, HOST = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
on_machine = pytest.mark.usefixtures("machine")
quiet_prototypes = pytest.mark.filterwarnings(
    "ignore:.*quantized tensor creation",
    "ignore:The PyTorch API of",
    "ignore:Sparse",
    "ignore:There is a performance drop",
    "ignore:.*masked.*",
    "ignore:.*jit.script. is deprecated:DeprecationWarning",
)


def places(*tensors: torch.Tensor) -> set[torch.device]:
    return {tensor.device for tensor in tensors}


# -- layouts ---------------------------------------------------------------------------------------


@on_machine
@quiet_prototypes
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda", layout=layout)
    out = torch.nn.Linear(3, 2, device="cuda")(nested * 2)
    padded = torch.nested.to_padded_tensor(out, 0.0)
    assert places(nested, out, padded, *out.unbind()) == {FIRST}
    assert padded.shape == (2, 4, 2)
    assert nested.cpu().device == HOST
    assert nested.to("cuda:1").device == SECOND


@on_machine
@quiet_prototypes
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_gradients_through_nested_tensors(layout: torch.layout) -> None:
    parts = [torch.ones(2, 3, device="cuda", requires_grad=True), torch.ones(4, 3, device="cuda")]
    nested = torch.nested.as_nested_tensor(parts, layout=layout)
    torch.nested.to_padded_tensor(nested * 3, 0.0).sum().backward()
    assert parts[0].grad is not None
    assert parts[0].grad.device == FIRST
    assert parts[0].grad.tolist() == [[3.0] * 3] * 2


@on_machine
@quiet_prototypes
def test_sparse_tensors() -> None:
    dense = torch.eye(3, device="cuda")
    coo, csr = dense.to_sparse(), dense.to_sparse_csr()
    assert places(coo, csr, coo.coalesce().indices(), csr.values(), coo @ dense, coo.to_dense()) == {FIRST}
    assert places(coo.cpu(), csr.cpu().to_dense()) == {HOST}
    assert places(dense.cpu().to_sparse().to("cuda:1")) == {SECOND}
    table = torch.nn.Embedding(3, 2, sparse=True, device="cuda")
    table(torch.tensor([1], device="cuda")).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    assert table.weight.grad.device == FIRST


def bags(mode: str) -> Callable[[torch.device], list[torch.Tensor]]:
    """Forward and backward of an `EmbeddingBag` whose gradient is sparse."""

    def run(device: torch.device) -> list[torch.Tensor]:
        table = torch.nn.EmbeddingBag(5, 2, mode=mode, sparse=True, device=device)
        tokens, offsets = torch.tensor([1, 4, 1], device=device), torch.tensor([0, 2], device=device)
        out = table(tokens, offsets)
        out.sum().backward()
        assert table.weight.grad is not None
        return [out, table.weight.grad]

    return run


def gathers(device: torch.device) -> list[torch.Tensor]:
    x = torch.ones(2, 3, device=device, requires_grad=True)
    x.gather(1, torch.tensor([[0], [2]], device=device), sparse_grad=True).sum().backward()
    assert x.grad is not None
    return [x.grad]


def masks(device: torch.device) -> list[torch.Tensor]:
    pattern = torch.eye(3, device=device).to_sparse()
    return [torch.ones(3, 3, device=device).sparse_mask(pattern)]


def diagonals(device: torch.device) -> list[torch.Tensor]:
    return [torch.sparse.spdiags(torch.ones(2, 3), torch.tensor([0, 1]), (3, 3)).to(device)]


def multiplies(device: torch.device) -> list[torch.Tensor]:
    x = torch.eye(3, device=device).to_sparse().requires_grad_()
    torch.sparse.mm(x, torch.ones(3, 2, device=device)).sum().backward()
    assert x.grad is not None
    return [x.grad]


SPARSE: dict[str, Callable[[torch.device], list[torch.Tensor]]] = {
    **{f"embedding_bag, {mode}": bags(mode) for mode in ("sum", "mean")},
    "gather": gathers,
    "sparse_mask": masks,
    "spdiags": diagonals,
    "sparse.mm": multiplies,
    **{
        f"to_sparse, {layout}": lambda device, layout=layout: [  # type: ignore[misc]
            torch.eye(4, device=device).to_sparse(
                layout=layout, blocksize=(2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
            )
        ]
        for layout in (
            torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc,
        )
    },
}  # fmt: skip
"""What gives a tensor without a storage where all that went in has one."""


@on_machine
@quiet_prototypes
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_tensors_from_dense_ones(name: str) -> None:
    placed, plain = SPARSE[name](FIRST), SPARSE[name](HOST)
    assert places(*placed) == {FIRST}
    assert any(tensor.layout is not torch.strided for tensor in placed)
    for tensor, other in zip(placed, plain, strict=True):
        if not name.startswith("embedding_bag") or tensor.layout is not torch.strided:  # its table is random
            assert torch.equal(tensor.cpu().to_dense(), other.to_dense())


def takes_numbers() -> list[tuple[Any, Any, int]]:
    """Overloads of ATen that a mode may meet with a Python number where a tensor stands first."""
    results = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        func = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if space != "aten" or func is None or func.has_kernel_for_dispatch_key("CompositeImplicitAutograd"):
            continue
        needed = [argument for argument in func._schema.arguments if not argument.has_default_value()]
        if any(
            str(argument.type) != "Tensor" or argument.kwarg_only or argument.alias_info
            for argument in needed[1:]
        ):
            continue
        if not needed or str(needed[0].type) != "Tensor":
            continue
        for number in (2.0, 2j):
            with contextlib.suppress(Exception):
                func(number, *[torch.ones(2) for _ in needed[1:]])
                results.append((func, number, len(needed) - 1))
    return results


@quiet_prototypes
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_numbers_in_place_of_tensors() -> None:
    """In backward of ``1j * x`` the conjugate is asked of a Python number."""
    overloads = takes_numbers()
    assert {"aten::_conj", "aten::mul", "aten::_to_copy"} <= {func._schema.name for func, *_ in overloads}
    with Emulator():
        for func, number, other_count in overloads:
            for device in (FIRST, HOST):
                out = func(number, *[torch.ones(2, device=device) for _ in range(other_count)])
                assert out.device == (device if other_count else HOST), func
        x = torch.ones(3, dtype=torch.complex64, device="cuda", requires_grad=True)
        (1j * x).abs().sum().backward()
        assert x.grad is not None
        assert x.grad.device == FIRST


@on_machine
@quiet_prototypes
def test_quantized_complex_and_empty_tensors() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("cuda")
    assert places(quantized, quantized.dequantize(), quantized.int_repr()) == {FIRST}
    turned = torch.tensor([1 + 2j], device="cuda").conj()
    assert places(turned, turned.imag, torch.view_as_real(turned.resolve_conj())) == {FIRST}
    assert turned.cpu().tolist() == [1 - 2j]
    assert torch.tensor([1 + 2j]).conj().to("cuda").tolist() == [1 - 2j]
    assert torch.linalg.matrix_rank(torch.ones(0, 3, 3, device="cuda")).device == FIRST


@on_machine
def test_conjugates_inside_an_operator_are_resolved() -> None:
    """ATen's kernels take conjugate transposes, which nothing resolves below a mode unless it is asked to."""
    matrix = torch.complex(torch.arange(9.0).reshape(3, 3).sin(), torch.arange(9.0).reshape(3, 3).cos())
    inverse = torch.linalg.pinv(matrix.to("cuda")).cpu()
    assert torch.allclose(matrix @ inverse @ matrix, matrix, atol=1e-4)
    assert (torch.tensor([1j]).conj() * 1).tolist() == [-1j]  # and the keys are as they were before


@on_machine
def test_into_out() -> None:
    rank = torch.zeros((), dtype=torch.long, device="cuda")
    assert torch.linalg.matrix_rank(torch.eye(3, device="cuda"), out=rank) is rank
    assert rank.item() == 3
    grown = torch.add(torch.ones(3, device="cuda"), 1, out=torch.empty(0, device="cuda"))
    assert (grown.device, grown.tolist()) == (FIRST, [2.0] * 3)


# -- subclasses ------------------------------------------------------------------------------------


class Named(torch.Tensor):
    """A subclass with the function protocol alone."""


class Wrapped(torch.Tensor):
    """A subclass with the dispatch protocol, around another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        result = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        result.inner = inner
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapped) else value

        tree_map = torch.utils._pytree.tree_map
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value, out)


@on_machine
@pytest.mark.parametrize(
    "make",
    [lambda x: x.as_subclass(Named), Wrapped, lambda x: TwoTensor(x, x.clone())],
    ids=["f", "d", "two"],
)
def test_subclasses(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result = make(torch.ones(3, device="cuda"))
    moved = make(torch.ones(3)).to("cuda:1")
    back = result.cpu()
    assert places(result, result * 2, result.sum(), make(torch.ones(3)).cuda()) == {FIRST}
    assert (moved.device, (moved + 1).device, back.device, (back + 1).device) == (SECOND, SECOND, HOST, HOST)
    assert type(result * 2) is type(moved) is type(result)


@on_machine
@quiet_prototypes
def test_masked_tensors() -> None:
    from torch.masked import masked_tensor

    masked = masked_tensor(torch.ones(3, device="cuda"), torch.tensor([True, False, True], device="cuda"))
    assert places(masked, masked * 2, masked.sum(), masked.to_tensor(0.0)) == {FIRST}


# -- torch.func and its kin ------------------------------------------------------------------------

TRANSFORMED: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: torch.vmap(lambda row: (row * 2 + torch.ones(4, device="cuda")).sum())(x),
    "vmap asks": lambda x: torch.vmap(lambda row: row * (1.0 if row.is_cuda else 0.0))(x),
    "vmap draws": lambda x: torch.vmap(
        lambda row: row + torch.randn(4, device="cuda"), randomness="different"
    )(x),
    "grad": lambda x: torch.func.grad(lambda y: y.sin().sum())(x),
    "per sample": lambda x: torch.vmap(torch.func.grad(lambda w, row: (w * row).sum()), (None, 0))(x[0], x),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](torch.ones_like(x))[0],
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda y: y.sin().sum())(x[0]),
    "functionalize": lambda x: torch.func.functionalize(lambda y: y.clone().add_(1))(x),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
}


@quiet_prototypes
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name: str) -> None:
    values = torch.arange(12.0).reshape(3, 4)
    torch.manual_seed(3)
    expected = TRANSFORMED[name](values) if name not in ("vmap", "vmap asks", "vmap draws") else None
    with Emulator():
        out = TRANSFORMED[name](values.to("cuda"))
        assert out.device == FIRST
    if expected is not None:
        assert torch.equal(out, expected)
    if name == "vmap asks":
        assert torch.equal(out, values)


# -- operators with a body in Python ---------------------------------------------------------------


@torch.library.custom_op("gapless_tests::shifted", mutates_args=(), device_types="cuda")
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(3, device="cuda")


@torch.library.custom_op("gapless_tests::checked", mutates_args=())
def checked(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum().item()


shifted.register_autograd(lambda ctx, gradient: gradient * 5)
_library = torch.library.Library("gapless_tests", "FRAGMENT")
_library.define("nowhere(Tensor x) -> Tensor")


def test_an_operator_for_cuda_alone(machine: Any) -> None:
    x = torch.zeros(3, device="cuda", requires_grad=True)
    out = shifted(x)
    out.sum().backward()
    assert x.grad is not None
    assert (out.device, x.grad.device) == (FIRST, FIRST)
    assert (out.tolist(), x.grad.tolist()) == ([1.0] * 3, [5.0] * 3)
    with pytest.raises(NotImplementedError, match="gapless_tests::shifted"):
        shifted(torch.zeros(3))
    with pytest.raises((NotImplementedError, NotEmulated), match="gapless_tests::nowhere"):
        torch.ops.gapless_tests.nowhere(x)


def test_what_a_custom_operator_reads_is_seen(machine: Any) -> None:
    checked(torch.ones(3, device="cuda"))
    assert machine.kinds() == [("_local_scalar_dense", "read", 1)]
    checked(torch.ones(3))
    assert machine.waits() == 1


def test_inference_mode_hides_nothing(machine: Any) -> None:
    """Without autograd composite operators arrive whole."""
    with torch.inference_mode():
        x = torch.ones(3, 2).to("cuda")
        assert machine.waits() == 1
        out = torch.nn.Linear(2, 2).cuda()(x)
        moved = machine.waits()
        assert out.device == FIRST
        assert out.sum().item() == out.cpu().sum().item()
        assert machine.waits() == moved + 2
        assert torch.nn.functional.cross_entropy(out, torch.zeros(3, dtype=torch.long, device="cuda")).is_cuda
        assert machine.waits() == moved + 2


def test_a_list_as_index_is_copied_once(machine: Any) -> None:
    x = torch.arange(6.0, device="cuda").reshape(3, 2).requires_grad_()
    x[[0, 2]].sum().backward()
    assert machine.kinds() == [("index", "h2d", 1)]
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert x.detach()[:, [1]].tolist() == [[1.0], [3.0], [5.0]]


@quiet_prototypes
def test_checkpointed_and_forward_mode_gradients(machine: Any) -> None:
    import torch.autograd.forward_ad as forward
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, device="cuda", requires_grad=True)
    for reentrant in (True, False):
        x.grad = None
        checkpoint(torch.sin, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
        assert x.grad.device == FIRST
    with forward.dual_level():
        value, tangent = forward.unpack_dual(forward.make_dual(x.detach(), torch.ones_like(x)).exp())
        assert places(value, tangent) == {FIRST}
    assert machine.waits() == 0


def test_higher_order_operators(machine: Any) -> None:
    from torch._higher_order_ops.while_loop import while_loop
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.ones(3, device="cuda")
    before = machine.waits()
    state, drawn = run_and_save_rng_state(torch.ops.aten.rand_like, x)
    again = run_with_rng_state(state, torch.ops.aten.rand_like, x)
    assert state.shape == (16,)
    assert places(drawn, again) == {FIRST}
    assert machine.waits() == before
    assert torch.equal(drawn.cpu(), again.cpu())
    before = machine.waits()
    (end,) = while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))
    assert places(end) == {FIRST}
    assert machine.waits() > before
    query = torch.randn(1, 1, 128, 16, device="cuda")
    before = machine.waits()
    assert places(flex_attention(query, query, query)) == {FIRST}
    assert places(torch.compile(flex_attention)(query, query, query)) == {FIRST}
    assert machine.waits() == before
