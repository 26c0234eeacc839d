"""Autocast for "cuda" on CPU values, against torch's own lists of what CUDA casts."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal.autocast_test_lists import AutocastTestLists  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gapless.emulation.dispatch import autocast, autocast_kernels, autocast_ops  # noqa: E402
from gapless.emulation.support.patches import Patches  # noqa: E402

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
DK = torch._C.DispatchKey


class Table:
    """A placement table for tests: everything is on the device but what was put on the host."""

    def __init__(self) -> None:
        self.on_host: set[int] = set()

    def device_of(self, tensor: Any) -> int:
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        return -1 if tensor.untyped_storage()._cdata in self.on_host else 0

    def host(self, tensor: Any) -> Any:
        self.on_host.add(tensor.untyped_storage()._cdata)
        return tensor


@pytest.fixture
def table() -> Iterator[Table]:
    patches = Patches()
    patches.set(torch.cuda, "is_available", lambda: True)
    patches.set(torch.cuda, "is_bf16_supported", lambda *_: True)
    placement = Table()
    autocast.install(placement.device_of, patches)
    yield placement
    autocast.uninstall()
    patches.undo()


@pytest.fixture
def looks_like_cuda(table: Table) -> Iterator[None]:
    """`Tensor.device` says "cuda", as it does under emulation."""
    patches = Patches()
    patches.set(torch.Tensor, "device", property(lambda _: torch.device("cuda", 0)))
    yield
    patches.undo()


class Seen(TorchDispatchMode):
    """Notes every operator with the dtypes of its tensor arguments; may answer for those the CPU lacks."""

    def __init__(self, answer: bool = False) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        self.calls.append((func._schema.name, tuple(t.dtype for t in tensors)))
        if self.answer and func._schema.name in NOT_ON_CPU:
            answers = tuple(ANSWERS[str(result.type)]() for result in func._schema.returns)
            return answers if len(answers) > 1 else answers[0]
        return func(*args, **(kwargs or {}))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


NOT_ON_CPU = {
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
    "aten::_scaled_dot_product_flash_attention",
}

ANSWERS: dict[str, Callable[[], Any]] = {"Tensor": lambda: torch.zeros(1), "int": int, "SymInt": int}

# torch's lists hold operators that torch itself calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")

# -- the table -----------------------------------------------------------------------------------------


def header_policies() -> dict[str, set[str]]:
    """What torch's own header lists, by macro name."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch comes without its headers")
    text = header.read_text().replace("\\\n", " ")
    results = {}
    for macro in ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"):
        match = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*)", text)
        assert match is not None
        entries = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", match[1])
        results[macro] = {f"{name}.{overload}" if overload else name for name, overload in entries}
    return results


def kernels() -> set[str]:
    """The ATen operators this torch casts on CUDA."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = {name for name in torch._C._dispatch_get_all_op_names() if has(name, "AutocastCUDA")}
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def test_the_table_is_the_headers() -> None:
    available = kernels()
    policies = {key: set(names.split()) & available for key, names in autocast_ops.POLICIES.items()}
    header = header_policies()
    # What only CUDA casts is registered beside the shared list (the last one since torch 2.14).
    header["LOWER_PRECISION_FP"] |= {"cudnn_convolution", "cudnn_convolution_transpose"}
    header["FP32"] |= {"linalg_matrix_sqrth"} & available
    assert policies[autocast_ops.LOWER_PRECISION] == header["LOWER_PRECISION_FP"]
    assert policies[autocast_ops.FP32] == header["FP32"]
    assert policies[autocast_ops.FP32_SET_DTYPE] == header["FP32_SET_OPT_DTYPE"]
    assert policies[autocast_ops.PROMOTE] == header["PROMOTE"]


def test_every_cuda_kernel_of_this_torch_is_in_the_table() -> None:
    # CUDA's builds register cuDNN's recurrent operator, which no CPU tensor reaches.
    missing = kernels() - {"_cudnn_rnn"} - set(autocast_ops.aten_policies())
    assert not missing


# -- torch's test lists: (operator, arguments) with the dtype CUDA gives ------------------------------


def listed() -> list[Any]:
    torch.manual_seed(0)
    lists = AutocastTestLists("cpu")
    sources = [
        ("torch_fp16", torch, HALF),
        ("torch_fp32", torch, FLOAT),
        ("torch_need_autocast_promote", torch, FLOAT),
        ("nn_fp16", torch._C._nn, HALF),
        ("nn_fp32", torch._C._nn, FLOAT),
        ("linalg_fp16", torch._C._linalg, HALF),
        ("methods_fp16", torch.Tensor, HALF),
        ("methods_fp32", torch.Tensor, FLOAT),
        ("torch_expect_builtin_promote", torch, None),
    ]
    cases = []
    for source, owner, dtype in sources:
        for entry in getattr(lists, source):
            name, args = entry[0], entry[1]
            if name.startswith("cudnn") or name == "einsum":
                continue  # not on the CPU; wrong arguments in the list
            kwargs = next((extra for extra in entry[2:] if isinstance(extra, dict)), {})
            expected = dtype or next(extra for extra in entry[2:] if isinstance(extra, torch.dtype))
            cases.append(
                pytest.param(_function(owner, name), args, kwargs, expected, dtype, id=f"{source}-{name}")
            )
    return cases


def _function(owner: Any, name: str) -> Callable[..., Any]:
    for place in (owner, torch._C._nn, torch._C._linalg, torch):
        if hasattr(place, name):
            return getattr(place, name)
    raise AssertionError(name)


def cast_like(value: Any, dtype: Any) -> Any:
    """The reference: what a user casts by hand."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast_like(item, dtype) for item in value)
    return value


def flat(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


@pytest.mark.parametrize(("function", "args", "kwargs", "expected", "cast"), listed())
def test_casts_as_torchs_lists_say(
    table: Table, function: Any, args: Any, kwargs: Any, expected: Any, cast: Any
) -> None:
    with torch.autocast("cuda"):
        results = flat(function(*args, **kwargs))
        assert torch.is_autocast_enabled("cuda")
    control = flat(function(*cast_like(args, cast), **kwargs)) if cast else flat(function(*args, **kwargs))
    for result, reference in zip(results, control, strict=True):
        if isinstance(result, torch.Tensor):
            assert result.dtype is expected
            assert result.dtype is reference.dtype
            assert torch.equal(result, reference)
        else:
            assert result == reference


@pytest.mark.parametrize(("function", "args", "kwargs", "expected", "cast"), listed()[:40])
def test_the_autocast_dtype_is_the_one_asked_for(
    table: Table, function: Any, args: Any, kwargs: Any, expected: Any, cast: Any
) -> None:
    args = cast_like(args, FLOAT)
    with torch.autocast("cuda", dtype=BF16):
        results = flat(function(*args, **kwargs))
    assert {result.dtype for result in results} == {BF16 if expected is HALF else FLOAT}


# -- operators torch's lists leave out -------------------------------------------------------------------

F = torch.nn.functional


def images(dims: int, dtype: Any = HALF) -> Any:
    return torch.rand((1, 2, *(4,) * dims)).to(dtype)


ATEN = torch.ops.aten
UNLISTED: dict[str, tuple[Callable[[], Any], Any]] = {
    "einsum": (lambda: torch.einsum("ij,jk->ik", torch.rand(3, 3), torch.rand(3, 3)), HALF),
    "scaled_dot_product_attention": (
        lambda: F.scaled_dot_product_attention(*[torch.rand(1, 2, 4, 8)] * 3),
        HALF,
    ),
    "pow.Scalar": (lambda: torch.pow(2.0, torch.rand(3).half()), FLOAT),
    "native_layer_norm": (
        lambda: torch.native_layer_norm(torch.rand(2, 4).half(), (4,), None, None, 1e-5),
        FLOAT,
    ),
    "huber_loss": (lambda: F.huber_loss(torch.rand(3).half(), torch.rand(3).half()), FLOAT),
    "frobenius_norm.dim": (lambda: torch.frobenius_norm(torch.rand(3, 3).half(), (0, 1)), FLOAT),
    "nuclear_norm": (lambda: torch.nuclear_norm(torch.rand(3, 3).half()), FLOAT),
    "nuclear_norm.dim": (lambda: torch.nuclear_norm(torch.rand(3, 3).half(), (0, 1)), FLOAT),
    "linalg_vector_norm": (lambda: torch.linalg.vector_norm(torch.rand(3).half()), FLOAT),
    "linalg_matrix_norm": (lambda: torch.linalg.matrix_norm(torch.rand(3, 3).half(), 1), FLOAT),
    "linalg_matrix_norm.str_ord": (lambda: torch.linalg.matrix_norm(torch.rand(3, 3).half(), "fro"), FLOAT),
    "norm.Scalar": (lambda: ATEN.norm.Scalar(torch.rand(3).half()), FLOAT),
    "norm.ScalarOpt_dim": (lambda: ATEN.norm.ScalarOpt_dim(torch.rand(3).half(), None, [0], True), FLOAT),
    "norm.ScalarOpt_dim, defaults left out": (
        lambda: F.pairwise_distance(torch.rand(2, 3).half(), torch.rand(2, 3).half()),
        FLOAT,
    ),
    "upsample_nearest1d": (lambda: ATEN.upsample_nearest1d.default(images(1), [8]), FLOAT),
    "upsample_nearest2d": (lambda: ATEN.upsample_nearest2d.default(images(2), [8, 8]), FLOAT),
    "upsample_nearest3d": (lambda: ATEN.upsample_nearest3d.default(images(3), [8, 8, 8]), FLOAT),
    "_upsample_nearest_exact1d": (lambda: ATEN._upsample_nearest_exact1d.default(images(1), [8]), FLOAT),
    "_upsample_nearest_exact2d": (lambda: ATEN._upsample_nearest_exact2d.default(images(2), [8, 8]), FLOAT),
    "_upsample_nearest_exact3d": (
        lambda: ATEN._upsample_nearest_exact3d.default(images(3), [8, 8, 8]),
        FLOAT,
    ),
    "upsample_linear1d": (lambda: ATEN.upsample_linear1d.default(images(1), [8], False), FLOAT),
    "upsample_bilinear2d": (lambda: ATEN.upsample_bilinear2d.default(images(2), [8, 8], False), FLOAT),
    "_upsample_bilinear2d_aa": (
        lambda: ATEN._upsample_bilinear2d_aa.default(images(2), [8, 8], False),
        FLOAT,
    ),
    "upsample_trilinear3d": (lambda: ATEN.upsample_trilinear3d.default(images(3), [8, 8, 8], False), FLOAT),
    "upsample_bicubic2d": (lambda: ATEN.upsample_bicubic2d.default(images(2), [8, 8], False), FLOAT),
    "_upsample_bicubic2d_aa": (lambda: ATEN._upsample_bicubic2d_aa.default(images(2), [8, 8], False), FLOAT),
}
if hasattr(torch.linalg, "matrix_sqrth"):
    UNLISTED["linalg_matrix_sqrth"] = (lambda: ATEN.linalg_matrix_sqrth.default(torch.eye(2).half()), FLOAT)


@pytest.mark.parametrize("name", UNLISTED)
def test_operators_the_lists_leave_out(table: Table, name: str) -> None:
    call, expected = UNLISTED[name]
    with torch.autocast("cuda"):
        first = flat(call())[0]
    assert first.dtype is expected


CUDA_ONLY: dict[str, Callable[[], Any]] = {
    "cudnn_convolution": lambda: torch.cudnn_convolution(
        images(2, FLOAT), images(2, FLOAT), (0, 0), (1, 1), (1, 1), 1, False, True, True
    ),
    "cudnn_convolution_transpose": lambda: torch.cudnn_convolution_transpose(
        images(2, FLOAT), images(2, FLOAT), (0, 0), (0, 0), (1, 1), (1, 1), 1, False, True, True
    ),
    "_thnn_fused_lstm_cell": lambda: ATEN._thnn_fused_lstm_cell(*[torch.rand(2, 8)] * 2, torch.rand(2, 2)),
    "_thnn_fused_gru_cell": lambda: ATEN._thnn_fused_gru_cell(*[torch.rand(2, 6)] * 2, torch.rand(2, 2)),
    "_scaled_dot_product_flash_attention": lambda: ATEN._scaled_dot_product_flash_attention(
        *[torch.rand(1, 2, 4, 8)] * 3
    ),
}


@pytest.mark.parametrize("name", CUDA_ONLY)
def test_operators_the_cpu_lacks_get_cast_arguments(table: Table, name: str) -> None:
    with Seen(answer=True) as recorder, torch.no_grad(), torch.autocast("cuda"):
        CUDA_ONLY[name]()
    assert set(dict(recorder.calls)[f"aten::{name}"]) == {HALF}


def test_binary_cross_entropy_is_refused_in_torchs_words(table: Table) -> None:
    probabilities, target = torch.rand(4), torch.rand(4)
    with torch.autocast("cuda"), pytest.raises(RuntimeError) as caught:
        F.binary_cross_entropy(probabilities, target)
    message = str(caught.value)
    assert message.startswith(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    )
    assert message.endswith("safe to autocast.")
    with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):
        F.binary_cross_entropy(probabilities, target)


def test_promotion_refuses_what_cuda_refuses(table: Table) -> None:
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        torch.dot(torch.rand(3).bfloat16(), torch.rand(3).bfloat16())


def test_an_explicit_dtype_is_respected(table: Table) -> None:
    x = torch.rand(3, 3).half()
    with torch.autocast("cuda"):
        assert torch.sum(x, 1, dtype=HALF).dtype is HALF
        assert torch.softmax(x, 1, HALF).dtype is HALF
        assert torch.softmax(x, 1, dtype=BF16).dtype is BF16
        assert torch.sum(torch.ones(3, dtype=torch.int64)).dtype is torch.int64


def test_doubles_and_integers_stay(table: Table) -> None:
    x = torch.rand(3, 3, dtype=torch.float64)
    with torch.autocast("cuda"):
        assert (x @ x).dtype is torch.float64
        assert x.exp().dtype is torch.float64
        assert torch.sum(x).dtype is torch.float64
        assert ATEN.norm.Scalar(x).dtype is torch.float64
        assert torch.cumsum(torch.arange(3), 0).dtype is torch.int64


# -- recurrent layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_recurrent_layers_run_in_half_as_cudnn_does(
    table: Table, kind: str, packed: bool, dtype: Any
) -> None:
    layer = getattr(torch.nn, kind)(4, 4, num_layers=2, bidirectional=True)
    data: Any = torch.rand(5, 3, 4)
    if packed:
        data = torch.nn.utils.rnn.pack_padded_sequence(data, torch.tensor([5, 3, 2]))
    with torch.autocast("cuda", dtype=dtype):
        out, state = layer(data)
    out = out.data if packed else out
    assert {out.dtype, *(part.dtype for part in flat(state))} == {HALF}
    out.sum().backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {FLOAT}


def test_recurrent_layers_without_cudnn_run_in_the_autocast_dtype(table: Table) -> None:
    layer = torch.nn.LSTM(4, 4)
    with torch.backends.cudnn.flags(enabled=False), torch.autocast("cuda", dtype=BF16):
        assert layer(torch.rand(5, 3, 4))[0].dtype is BF16


# -- what is on the host -------------------------------------------------------------------------------


def test_host_tensors_are_not_cast(table: Table) -> None:
    x = table.host(torch.rand(4, 4))
    half = table.host(torch.rand(4).half())
    with torch.autocast("cuda"):
        assert (x @ x).dtype is FLOAT
        assert half.exp().dtype is HALF
        assert half.sum().dtype is HALF
        assert ATEN.norm.Scalar(half).dtype is HALF
        assert F.binary_cross_entropy(x, x).dtype is FLOAT
        assert torch.nn.LSTM(4, 4)(x)[0].dtype is FLOAT


def test_cpu_autocast_works_beside_cudas(table: Table) -> None:
    here, on_device = table.host(torch.rand(4, 4)), torch.rand(4, 4)
    with torch.autocast("cpu"):
        assert (here @ here).dtype is BF16
        with torch.autocast("cuda", dtype=HALF):
            assert (here @ here).dtype is BF16
            assert (on_device @ on_device).dtype is HALF
            assert on_device.half().exp().dtype is FLOAT
        assert (here @ here).dtype is BF16
    assert (here @ here).dtype is FLOAT


@pytest.mark.skipif(not hasattr(torch.library.Library, "fallback"), reason="needs torch 2.5")
def test_cpu_autocast_leaves_the_devices_tensors_alone(table: Table) -> None:
    here, on_device = table.host(torch.rand(4, 4)), torch.rand(4, 4)
    with torch.autocast("cpu"):
        assert (on_device @ on_device).dtype is FLOAT
        assert F.linear(on_device, on_device).dtype is FLOAT
        assert torch.fft.fft(on_device.half().float()).dtype is torch.complex64
        assert (here @ here).dtype is BF16
        with torch.autocast("cpu", enabled=False):
            assert (here @ here).dtype is FLOAT
        assert F.linear(here, here).dtype is BF16
    with torch.autocast("cpu"), torch.inference_mode():
        assert (on_device @ on_device).dtype is FLOAT
    assert torch.equal(on_device + 0, on_device)


# -- state ---------------------------------------------------------------------------------------------


def product() -> Any:
    return (torch.rand(2, 2) @ torch.rand(2, 2)).dtype


def test_nesting_and_disabling(table: Table) -> None:
    with torch.autocast("cuda"):
        assert product() is HALF
        with torch.autocast("cuda", enabled=False):
            assert product() is FLOAT
            assert not torch.is_autocast_enabled()
            with torch.autocast("cuda", dtype=BF16):
                assert product() is BF16
            assert product() is FLOAT
        assert product() is HALF
        assert torch.get_autocast_dtype("cuda") is HALF
    assert product() is FLOAT
    assert not torch.is_autocast_enabled("cuda")


def test_setting_the_state_by_hand(table: Table) -> None:
    torch.set_autocast_dtype("cuda", BF16)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert torch.is_autocast_enabled("cuda")
        assert product() is BF16
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", HALF)
        torch.clear_autocast_cache()
    assert product() is FLOAT


def test_an_exception_leaves_the_state_as_it_was(table: Table) -> None:
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.rand(2, 3), torch.rand(2, 3))
        assert torch.is_autocast_enabled("cuda")
        assert product() is HALF
    assert product() is FLOAT


def test_old_names(table: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scope = torch.cuda.amp.autocast(dtype=BF16)
    with scope:
        assert product() is BF16

    @torch.autocast("cuda")
    def decorated() -> Any:
        return product()

    assert decorated() is HALF


def test_a_new_thread_starts_without(table: Table) -> None:
    results: list[Any] = []

    def work() -> None:
        results.append(product())
        with torch.autocast("cuda"):
            results.append(product())
        results.append(product())

    with torch.autocast("cuda"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert product() is HALF
    assert results == [FLOAT, HALF, FLOAT]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes(table: Table, guard: Any) -> None:
    layer = torch.nn.Linear(3, 3)
    with guard(), torch.autocast("cuda"):
        assert layer(torch.rand(2, 3)).dtype is HALF
    with torch.autocast("cuda"), guard():
        assert layer(torch.rand(2, 3)).dtype is HALF
    with torch.autocast("cuda"):
        assert layer(torch.rand(2, 3)).dtype is HALF


# -- the cache of weights ------------------------------------------------------------------------------


def casts(recorder: Seen) -> int:
    return recorder.names().count("aten::_to_copy")


def test_weights_are_cast_once_per_region(table: Table) -> None:
    layer, x = torch.nn.Linear(3, 3), torch.rand(2, 3).half()
    with Seen() as recorder:
        with torch.autocast("cuda"):
            layer(x)
            layer(x)
            with torch.autocast("cuda"):
                layer(x)
            layer(x)
        assert casts(recorder) == 2
        with torch.autocast("cuda"):
            layer(x)
        assert casts(recorder) == 4
        with torch.autocast("cuda", cache_enabled=False):
            layer(x)
            layer(x)
        assert casts(recorder) == 8


def test_only_leaves_that_need_gradients_are_cached(table: Table) -> None:
    x, weight = torch.rand(2, 3).half(), torch.rand(3, 3)
    with Seen() as recorder, torch.autocast("cuda"):
        F.linear(x, weight)
        F.linear(x, weight)
    assert casts(recorder) == 2


def test_a_reused_address_is_not_mistaken_for_a_weight(table: Table) -> None:
    x = torch.rand(2, 3)
    with torch.autocast("cuda"):
        for value in range(20):
            weight = torch.full((3, 3), float(value), requires_grad=True)
            out = F.linear(x, weight)
            assert torch.equal(out, F.linear(x.half(), torch.full((3, 3), float(value)).half()))


@pytest.mark.parametrize("first", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("second", [torch.no_grad, torch.enable_grad])
def test_the_cache_behaves_as_torchs_own(table: Table, first: Any, second: Any) -> None:
    """torch's CPU autocast has CUDA's cache, with what the version at hand does without gradients."""

    def run(device: str, place: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        weight = place(torch.rand(3, 3, requires_grad=True))
        x = place(torch.rand(2, 3)).bfloat16()
        place(x)
        with Seen() as recorder, torch.autocast(device, dtype=BF16):
            with first():
                x @ weight
                x @ weight
            with second():
                out = x @ weight
        return [
            out,
            out.requires_grad,
            recorder.names().count("aten::_to_copy"),
            recorder.names().count("aten::to"),
        ]

    ours, reference = run("cuda", lambda t: t), run("cpu", table.host)
    assert torch.equal(ours[0], reference[0])
    assert ours[1:] == reference[1:]


def test_gradients_have_the_dtype_of_the_parameters(table: Table) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.rand(16, 3), torch.randint(0, 2, (16,))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = model(x)
            loss = F.cross_entropy(out, target)
        assert out.dtype is HALF
        assert loss.dtype is FLOAT
        loss.backward()
        assert {parameter.grad.dtype for parameter in model.parameters()} == {FLOAT}
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]  # the casts follow the weights


def test_backward_inside_autocast(table: Table) -> None:
    layer = torch.nn.Linear(3, 3)
    with torch.autocast("cuda"):
        layer(torch.rand(2, 3)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is FLOAT


# -- together with the rest of torch -------------------------------------------------------------------


def test_modes_see_the_casts_and_nothing_twice(table: Table) -> None:
    class Functions(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    weight = torch.rand(3, 3, requires_grad=True)
    x = torch.rand(2, 3)
    with Functions() as functions, Seen() as recorder, torch.autocast("cuda"):
        out = F.linear(x, weight)
    assert out.dtype is HALF
    assert functions.names == ["linear"]
    assert casts(recorder) == 2
    assert dict(recorder.calls)["aten::mm"] == (HALF, HALF)


def test_a_composite_operator_is_cast_once(table: Table) -> None:
    """`cdist` runs in float32, its inner matrix product too, although products are of lower precision."""
    x = torch.rand(30, 3).half()
    with Seen() as recorder, torch.autocast("cuda"):
        out = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist")
    assert torch.equal(out, torch.cdist(x.float(), x.float(), compute_mode="use_mm_for_euclid_dist"))
    assert dict(recorder.calls)["aten::_euclidean_dist"] == (FLOAT, FLOAT)


def test_custom_functions(table: Table, looks_like_cuda: None) -> None:
    results: list[Any] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            results.append(("forward", torch.is_autocast_enabled("cuda")))
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            results.append(("backward", torch.is_autocast_enabled("cuda"), grad.mm(b.t()).dtype))
            return grad.mm(b.t()), a.t().mm(grad)

    a, b = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
    with torch.autocast("cuda"):
        out = Product.apply(a, b)
    assert out.dtype is HALF
    out.sum().backward()
    assert results == [("forward", True), ("backward", True, HALF)]
    assert a.grad.dtype is FLOAT


def test_custom_functions_with_cast_inputs(table: Table, looks_like_cuda: None) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            assert not torch.is_autocast_enabled("cuda")
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            return grad.mm(b.t()), a.t().mm(grad)

    a = torch.rand(3, 3, dtype=HALF, requires_grad=True)
    with torch.autocast("cuda"):
        out = Product.apply(a, a)
    assert out.dtype is FLOAT
    out.sum().backward()
    assert a.grad.dtype is HALF


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_under_the_same_autocast(
    table: Table, looks_like_cuda: None, reentrant: bool
) -> None:
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(3, 3)
    results = []

    def block(x: Any) -> Any:
        results.append(product())
        return layer(x)

    x = torch.rand(2, 3, requires_grad=True)
    with torch.autocast("cuda", dtype=BF16):
        out = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=False)
    out.float().sum().backward()
    assert results == [BF16, BF16]
    assert layer.weight.grad.dtype is FLOAT


def test_function_transforms(table: Table) -> None:
    weight = torch.rand(3, 3)
    with torch.autocast("cuda"):
        assert torch.vmap(lambda row: weight @ row)(torch.rand(4, 3)).dtype is HALF
        gradient = torch.func.grad(lambda w: (w @ w).float().sum())(weight)
    assert gradient.dtype is FLOAT


def test_custom_operators_with_an_autocast_rule(table: Table, looks_like_cuda: None) -> None:
    with torch.library._scoped_library("gapless_test", "FRAGMENT") as library:
        torch.library.define("gapless_test::double_it", "(Tensor x) -> Tensor", lib=library)
        torch.library.impl("gapless_test::double_it", "CPU", lambda x: x * 2, lib=library)
        torch.library.register_autocast("gapless_test::double_it", "cuda", HALF, lib=library)
        with torch.autocast("cuda"):
            assert torch.ops.gapless_test.double_it(torch.rand(3)).dtype is HALF


def test_float32_inside_and_the_callers_dtype_outside(table: Table) -> None:
    """The policy of torchvision's C++ operators, on an operator made for the test."""
    with torch.library._scoped_library("gapless_test", "FRAGMENT") as library:
        results = []

        def pool(x: Any, boxes: Any) -> Any:
            results.append((x.dtype, boxes.dtype))
            return x + 1, torch.zeros(1, dtype=torch.int32)

        library.define("pool(Tensor x, Tensor boxes) -> (Tensor, Tensor)")
        library.impl("pool", pool, "CompositeExplicitAutograd")
        caster = autocast_kernels.Caster(table.device_of)
        body = autocast_kernels.body_of(caster, autocast_ops.FP32_AND_BACK, "pool", "gapless_test")
        library.impl("pool", autocast_kernels.below_autocast(body, caster), "AutocastCUDA")
        with torch.autocast("cuda"):
            out = torch.ops.gapless_test.pool(torch.rand(3).half(), torch.rand(3))
        assert results == [(FLOAT, FLOAT)]
        assert {part.dtype for part in out} == {HALF}


def test_installing_says_nothing_and_uninstalling_gives_everything_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    enabled, clear = torch.set_autocast_enabled, torch.clear_autocast_cache
    patches = Patches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autocast.install(lambda _: 0, patches)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert product() is HALF
        autocast.uninstall()
        assert product() is FLOAT
        autocast.uninstall()
    finally:
        patches.undo()
        torch.set_autocast_enabled("cuda", False)
    assert (torch.set_autocast_enabled, torch.clear_autocast_cache) == (enabled, clear)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(DK.AutocastCUDA)
    assert capfd.readouterr() == ("", "")
