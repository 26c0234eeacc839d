"""Recurrent layers and cells are CUDA's operators, and have the numbers of the CPU's."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gapless
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

KINDS = (nn.LSTM, nn.GRU, nn.RNN)
LENGTHS = {True: [7, 5, 3, 2], False: [4, 4, 3, 2, 2, 1, 1]}


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


class Names(TorchDispatchMode):
    """Names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def learned(layer: Any, passed: torch.Tensor, packed: bool) -> list[torch.Tensor]:
    """Output, last states, and the gradients of the input and of the weights."""
    data = passed.clone().requires_grad_()
    first = layer.batch_first
    source = nn.utils.rnn.pack_padded_sequence(data, torch.tensor(LENGTHS[first]), first) if packed else data
    out, state = layer(source)
    out = out.data if packed else out
    states = list(state) if isinstance(state, tuple) else [state]
    (out.square().sum() + sum(tensor.sum() for tensor in states)).backward()
    results = [out, *states, data.grad, *(weight.grad for weight in layer.parameters())]
    assert all(tensor is not None for tensor in results)
    return results


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_are_the_cpus(emulator: Emulator, kind: Any, packed: bool) -> None:
    torch.manual_seed(0)
    for deep, both, first, bias, projected in itertools.product((1, 2), *[(False, True)] * 4):
        if projected and kind is not nn.LSTM:
            continue
        more = {"proj_size": 3} if projected else {}
        layer = kind(5, 6, deep, bidirectional=both, batch_first=first, bias=bias, **more)
        data = torch.randn(4, 7, 5)
        on_device = learned(copy.deepcopy(layer).cuda(), data.cuda(), packed)
        for here, tensor in zip(learned(layer, data, packed), on_device, strict=True):
            assert tensor.stride() == here.stride()
            torch.testing.assert_close(tensor.cpu(), here)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_one_operator_each_way(emulator: Emulator, kind: Any) -> None:
    layer, data = kind(5, 6, 2).cuda(), torch.randn(7, 4, 5, device="cuda")
    with Names() as observed:
        out = layer(data)[0]
        out.sum().backward()
    assert [name for name in observed.names if "rnn" in name] == [
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
    ]
    assert not {"aten::addmm", "aten::mkldnn_rnn_layer", "aten::tanh"} & set(observed.names)


@pytest.mark.parametrize(("kind", "cell"), [(nn.LSTMCell, "lstm"), (nn.GRUCell, "gru")])
def test_a_cell_is_a_fused_kernel_behind_two_products(emulator: Emulator, kind: Any, cell: str) -> None:
    layer, data = kind(5, 6), torch.randn(4, 5)
    on_device = copy.deepcopy(layer).cuda()
    with Names() as observed:
        out = on_device(data.cuda())
    assert observed.names.count(f"aten::_thnn_fused_{cell}_cell") == 1
    assert observed.names.count("aten::mm") == 2
    here = layer(data)
    for tensor, same in zip(out, here, strict=True):
        torch.testing.assert_close(tensor.cpu(), same)


def test_dropout_between_layers_is_the_same_in_backward(emulator: Emulator) -> None:
    layer = nn.LSTM(5, 6, 3, dropout=0.5).double().cuda()
    data = torch.randn(7, 4, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    along = torch.randn_like(data)

    def loss(data: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return layer(data)[0].square().sum()

    loss(data).backward()
    assert data.grad is not None
    step = 1e-6
    slope = (loss(data.detach() + step * along) - loss(data.detach() - step * along)) / (2 * step)
    torch.testing.assert_close((data.grad * along).sum(), slope, rtol=1e-5, atol=1e-7)
    assert not torch.equal(layer(data)[0], layer(data)[0])
    layer.eval()
    assert torch.equal(layer(data)[0], layer(data)[0])


def test_what_cudnn_refuses_is_refused_in_its_words(emulator: Emulator) -> None:
    data = torch.randn(7, 4, 5, device="cuda", requires_grad=True)
    layer = nn.GRU(5, 6).cuda()
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device"):
        layer(data, torch.zeros(1, 4, 6))
    with pytest.raises(RuntimeError, match="Input and parameter tensors are not at the same device"):
        nn.GRU(5, 6)(data)
    (gradient,) = torch.autograd.grad(layer(data)[0].sum(), data, create_graph=True)
    with pytest.raises(NotImplementedError, match="Double backwards is not supported for CuDNN RNNs"):
        gradient.sum().backward()
    out = layer.eval()(data)[0]
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        out.sum().backward()


def test_without_cudnn_cells_run_one_by_one(emulator: Emulator) -> None:
    layer, data = nn.GRU(5, 6).cuda(), torch.randn(7, 4, 5, device="cuda")
    with torch.backends.cudnn.flags(enabled=False), Names() as observed:
        out = layer(data)[0]
    assert "aten::_cudnn_rnn" not in observed.names
    torch.testing.assert_close(out, layer(data)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_input_states_and_weights(emulator: Emulator, dtype: torch.dtype) -> None:
    layer, data = nn.GRU(5, 6).cuda(), torch.randn(7, 4, 5, device="cuda")
    with torch.autocast("cuda", dtype):
        out = layer(data)[0]
    assert out.dtype is torch.float16  # whatever autocast is asked for
    out.float().sum().backward()
    assert all(
        weight.grad is not None and weight.grad.dtype is torch.float32 for weight in layer.parameters()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_without_values_are_those_with_them(kind: Any) -> None:
    results = []
    for dry in (False, True):
        with Emulator(EmulatorOptions(dry=dry)):
            layer = kind(40, 60, 2, batch_first=True, bidirectional=True).cuda()
            data = torch.randn(64, 30, 40, device="cuda", requires_grad=True)
            out, state = layer(data)
            states = state if isinstance(state, tuple) else (state,)
            (out.sum() + states[0].sum()).backward()
            tensors = [out, *states, data.grad, *(weight.grad for weight in layer.parameters())]
            results.append([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])
            results.append(torch.cuda.max_memory_allocated())
    assert results[:2] == results[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_share_one_buffer_as_cudnn_wants_them(kind: type[nn.Module]) -> None:
    layer = kind(5, 6, 2)
    expected = [weight.detach().clone() for weight in layer.parameters()]
    with gapless.emulate() as emulation:
        layer.cuda()
        assert len({weight.untyped_storage().data_ptr() for weight in layer.parameters()}) == 1
        before = emulation.waits
        torch.save(layer.state_dict(), io.BytesIO())
        assert emulation.waits == before + 1  # a file holds a buffer once
        with torch.backends.cudnn.flags(enabled=False):
            other = kind(5, 6, 2).cuda()
        assert len({weight.untyped_storage().data_ptr() for weight in other.parameters()}) > 1
    for weight, original in zip(layer.parameters(), expected, strict=True):
        assert torch.equal(weight.cpu(), original)
