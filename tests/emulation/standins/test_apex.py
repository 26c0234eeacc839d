"""apex's stand-in beside torch's own norms and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gapless.emulation.standins import multi_tensor
from gapless.emulation.standins.packages.apex import amp, dense, norms, optimizers
from gapless.errors import NotEmulated


def trained(make: Callable[[Any], torch.optim.Optimizer], steps: int = 4) -> list[torch.Tensor]:
    """Parameters after some steps with gradients of their own."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,), (1,))]
    optimizer = make(params)
    for _ in range(steps):
        for parameter in params:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in params]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.0, 0.1]), st.booleans(), st.sampled_from([1e-8, 1e-2]))
def test_adam_is_torchs(decay: float, decoupled: bool, eps: float) -> None:
    theirs = torch.optim.AdamW if decoupled else torch.optim.Adam
    torch.testing.assert_close(
        trained(
            lambda p: optimizers.FusedAdam(p, lr=0.1, eps=eps, weight_decay=decay, adam_w_mode=decoupled)
        ),
        trained(lambda p: theirs(p, lr=0.1, eps=eps, weight_decay=decay)),
    )


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.2]), st.booleans())
def test_sgd_is_torchs(decay: float, momentum: float, dampening: float, nesterov: bool) -> None:
    settings_ = {"lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": decay}
    if nesterov and momentum and not dampening:
        settings_["nesterov"] = True
    torch.testing.assert_close(
        trained(lambda p: optimizers.FusedSGD(p, **settings_)),
        trained(lambda p: torch.optim.SGD(p, **settings_)),
    )


def test_adagrad_is_torchs() -> None:
    torch.testing.assert_close(
        trained(lambda p: optimizers.FusedAdagrad(p, lr=0.1, weight_decay=0.1)),
        trained(lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1)),
    )


LOOSE = {"rtol": 1e-4, "atol": 1e-5}


def lamb(
    params: list[torch.Tensor], gradients: list[torch.Tensor], state: Any, decay: float, always: bool
) -> None:
    """A step of LAMB as its paper has it, gradients clipped to norm 1."""
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    state["step"] = step = state.get("step", 0) + 1
    for at, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
        gradient = gradient / norm.clamp(min=1)
        m, v = state.get(at, (torch.zeros_like(param), torch.zeros_like(param)))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        state[at] = m, v
        update = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6) + decay * param
        trust = param.norm() / update.norm() if always or decay else 1.0
        param -= 0.1 * trust * update


@pytest.mark.parametrize(("decay", "always"), [(0.1, False), (0.0, False), (0.0, True)])
def test_lamb_is_that_of_its_paper(decay: float, always: bool) -> None:
    torch.manual_seed(0)
    expected = [torch.randn(3, 4), torch.randn(5)]
    params = [torch.nn.Parameter(start.clone()) for start in expected]
    optimizer = optimizers.FusedLAMB(params, lr=0.1, weight_decay=decay, use_nvlamb=always)
    state: Any = {}
    for _ in range(3):
        gradients = [torch.randn_like(tensor) for tensor in expected]
        lamb(expected, gradients, state, decay, always)
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close([parameter.detach() for parameter in params], expected)


@pytest.mark.parametrize("norm", [0, 2])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_novograd_number_by_number(norm: int, inside: bool, averaged: bool, zero: bool) -> None:
    torch.manual_seed(0)
    values = [torch.randn(3, 4), torch.randn(5)]
    params = [torch.nn.Parameter(value.clone()) for value in values]
    options = {"reg_inside_moment": inside, "grad_averaging": averaged, "init_zero": zero}
    optimizer = optimizers.FusedNovoGrad(params, lr=0.1, weight_decay=0.1, norm_type=norm, **options)
    expected = [value.double().flatten().tolist() for value in values]
    momenta, norms = [[0.0] * len(tensor) for tensor in expected], [0.0, 0.0]
    for step in range(1, 4):
        for at, param in enumerate(params):
            param.grad = torch.randn_like(param)
            gradient = param.grad.double().flatten().tolist()
            size = max(map(abs, gradient)) if norm == 0 else sum(g * g for g in gradient) ** 0.5
            before = size if step == 1 and not zero else norms[at]
            power = 1 if norm == 0 else 2
            norms[at] = (0.999 * before**power + 0.001 * size**power) ** (1 / power)
            unit = norms[at] / (1 - 0.999**step) ** 0.5 + 1e-8
            for i, g in enumerate(gradient):
                value = expected[at][i]
                g = g / unit + 0.1 * value if inside else g
                m = momenta[at][i] = 0.9 * momenta[at][i] + (0.1 if averaged else 1.0) * g
                m /= 1 - 0.9**step
                expected[at][i] -= 0.1 * (m if inside else m / unit + 0.1 * value)
        optimizer.step()
    for param, start in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach().double().flatten(), torch.tensor(start).double(), **LOOSE)


def test_novograd_reads_the_norms_of_the_first_gradients(recorded: Any) -> None:
    model = torch.nn.Linear(4, 4).to("cuda")
    optimizer = optimizers.FusedNovoGrad(model.parameters())
    for waits in (3, 0):  # two norms read and put back together
        model(torch.rand(2, 4, device="cuda")).sum().backward()
        before = recorded.waits()
        with recorded.launching() as launches:
            optimizer.step()
        assert recorded.waits() == before + waits
    assert [launch.name for launch in launches] == [
        "apex::multi_tensor_norm_out",
        "apex::multi_tensor_novograd",
    ]
    again = optimizers.FusedNovoGrad(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    again.step()
    with pytest.raises(RuntimeError, match="l2/inf"):
        optimizers.FusedNovoGrad(model.parameters(), norm_type=1)


def test_kernels_over_many_tensors() -> None:
    lists = [torch.tensor([3.0, 4.0]), torch.tensor([12.0])]
    stop = torch.zeros(1, dtype=torch.int)
    kernels = multi_tensor.kernels_for("amp_C")
    whole, each = kernels["multi_tensor_l2norm"](65536, stop, [lists], True)
    assert whole.item() == 13
    assert each.tolist() == [5, 12]
    out = [torch.empty(2), torch.empty(1)]
    kernels["multi_tensor_scale"](65536, stop, [lists, out], 0.5)
    assert [tensor.tolist() for tensor in out] == [[1.5, 2.0], [6.0]]
    kernels["multi_tensor_axpby"](65536, stop, [lists, lists, out], 2.0, -1.0)
    torch.testing.assert_close(out, lists)
    assert not stop.item()
    kernels["multi_tensor_scale"](65536, stop, [[torch.tensor([float("inf")])], [torch.empty(1)]], 1.0)
    assert stop.item()


def test_a_step_is_one_kernel_and_no_wait(recorded: Any) -> None:
    model = torch.nn.Linear(4, 4).to("cuda")
    optimizer = optimizers.FusedAdam(model.parameters())
    model(torch.rand(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    model(torch.rand(2, 4, device="cuda")).sum().backward()
    before = recorded.waits()
    with recorded.launching() as launches:
        optimizer.step()
    assert [launch.name for launch in launches] == ["apex::multi_tensor_adam"]
    assert launches[0].tensors == 8
    assert recorded.waits() == before


def test_norms_are_torchs(gradients: Callable[..., Any]) -> None:
    x, weight, bias = torch.randn(3, 2, 4), torch.rand(2, 4), torch.rand(2, 4)
    pairs = (
        (
            lambda x, w, b: norms.fused_layer_norm_affine(x, w, b, (2, 4), 1e-5),
            lambda x, w, b: functional.layer_norm(x, (2, 4), w, b, 1e-5),
        ),
        (
            lambda x, w, b: norms.fused_rms_norm_affine(x, w, (2, 4), 1e-5) + b.sum() * 0,
            lambda x, w, b: functional.rms_norm(x, (2, 4), w, 1e-5) + b.sum() * 0,
        ),
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours(x, weight, bias), theirs(x, weight, bias))
        torch.testing.assert_close(
            gradients(ours, x, weight, bias), gradients(theirs, x, weight, bias), atol=1e-5, rtol=1e-4
        )
    assert torch.equal(norms.FusedLayerNorm(4)(x), norms.fused_layer_norm(x, 4, 1e-5))
    assert norms.MixedFusedRMSNorm(4)(x.half()).dtype is torch.float32
    assert list(norms.FusedRMSNorm(4).state_dict()) == ["weight"]


def test_norms_follow_autocast(recorded: Any) -> None:
    norm = norms.FusedLayerNorm(4).to("cuda")
    x = torch.rand(2, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16), recorded.launching() as launches:
        out = norm(x)
    assert out.dtype is torch.bfloat16
    assert [launch.name for launch in launches if launch.name.startswith("apex")] == [
        "apex::layer_norm_forward"
    ]
    out.sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.dtype is torch.float32


def test_layers_are_torchs() -> None:
    mlp = dense.MLP([4, 8, 2])
    x = torch.randn(3, 4)
    hidden = functional.relu(functional.linear(x, mlp.weight_0, mlp.bias_0))
    expected = functional.relu(functional.linear(hidden, mlp.weight_1, mlp.bias_1))
    torch.testing.assert_close(mlp(x), expected)
    assert dense.FusedDenseGeluDense(4, 8, 2)(x).shape == (3, 2)


def test_amp_refuses_with_what_to_use() -> None:
    with pytest.raises(NotEmulated, match=r"apex\.amp\.initialize.*torch\.amp"):
        amp.initialize(None, None)
