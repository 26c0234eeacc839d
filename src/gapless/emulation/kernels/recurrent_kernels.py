"""Fused kernels of recurrent cells, and cuDNN's recurrent layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from gapless.emulation.kernels import kernel, philox
from gapless.torch_internals import DispatchKey, SetExcludedKey

Tensor = torch.Tensor


@kernel("_thnn_fused_lstm_cell")
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden state, cell state, and the four gates after their activations."""
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    into, forget, cell, out = gates.chunk(4, 1)
    into, forget, cell, out = into.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
    cy = forget * cx + into * cell
    return out * cy.tanh(), cy, torch.cat((into, forget, cell, out), 1)


@kernel("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    into, forget, cell, out = workspace.chunk(4, 1)
    bent = cy.tanh()
    hidden = torch.zeros_like(cy) if grad_hy is None else grad_hy
    inner = hidden * out * (1 - bent * bent)
    if grad_cy is not None:
        inner = inner + grad_cy
    gates = torch.cat(
        (
            inner * cell * into * (1 - into),
            inner * cx * forget * (1 - forget),
            inner * into * (1 - cell * cell),
            hidden * bent * out * (1 - out),
        ),
        1,
    )
    return gates, inner * forget, gates.sum(0) if has_bias else None


@kernel("_thnn_fused_gru_cell")
def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden state and, for backward, the gates, the old state and the new gate's hidden part."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    from_input, from_hidden = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    reset = (from_input[0] + from_hidden[0]).sigmoid()
    update = (from_input[1] + from_hidden[1]).sigmoid()
    new = (from_input[2] + reset * from_hidden[2]).tanh()
    hy = new + update * (hx - new)
    return hy, torch.cat((reset, update, new, hx, from_hidden[2]), 1)


@kernel("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden * reset * (1 - reset)
    from_input = torch.cat((grad_reset, grad_update, grad_new), 1)
    from_hidden = torch.cat((grad_reset, grad_update, grad_new * reset), 1)
    biases = (from_input.sum(0), from_hidden.sum(0)) if has_bias else (None, None)
    return from_input, from_hidden, grad_hy * update, *biases


KINDS = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
"""cuDNN's layers, indexed by its `mode`."""
_GATES = (1, 1, 4, 3)
"""Gates of a unit, by mode."""
_SAVED_BESIDES_GATES = (0, 0, 1, 1)
"""Numbers saved per unit and step besides the gates, by mode: a cell state, the hidden part of a gate."""
_AUTOGRAD: Any = DispatchKey.AutogradFunctionality


class _Layers(NamedTuple):
    """The layer parameters of cuDNN's operators, in their schema's order."""

    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: list[int]

    def run(self, input: Tensor, weight: Any, biased: bool, hx: Tensor, cx: Tensor | None) -> list[Tensor]:
        """Return output and last states by ATen's own loops; half precision is computed in float32."""
        wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
        data, *states = (tensor.to(wide) for tensor in (input, hx, cx) if tensor is not None)
        weights = [tensor.to(wide) for tensor in weight]
        settings = (biased, self.num_layers, self.dropout, self.train, self.bidirectional)
        state: Any = states[0] if cx is None else tuple(states)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            if self.batch_sizes:
                out = KINDS[self.mode](data, torch.tensor(self.batch_sizes), state, weights, *settings)
            else:
                out = KINDS[self.mode](data, state, weights, *settings, self.batch_first)
        return [tensor.to(input.dtype) for tensor in out]

    def shapes(self, input: Tensor, hx: Tensor, cx: Tensor | None) -> list[Tensor]:
        """Return output and last states on the meta device."""
        wide = (self.proj_size or self.hidden_size) * (1 + self.bidirectional)
        if self.batch_first and not self.batch_sizes:
            out = input.new_empty((input.shape[1], input.shape[0], wide)).transpose(0, 1)
        else:
            out = input.new_empty((*input.shape[:-1], wide))
        return [out, torch.empty_like(hx), *([] if cx is None else [torch.empty_like(cx)])]

    @property
    def draws(self) -> bool:
        return self.train and self.dropout > 0 and self.num_layers > 1

    def reserve(self, input: Tensor) -> Tensor:
        """Allocate the reserve for backward: our estimate, as cuDNN does not document its size."""
        if not self.train:
            return input.new_empty(0, dtype=torch.uint8)
        units = math.prod(input.shape[:-1]) * self.hidden_size * (1 + self.bidirectional)
        each = (_GATES[self.mode] + _SAVED_BESIDES_GATES[self.mode]) * self.num_layers + (self.num_layers - 1)
        masks = units * (self.num_layers - 1) if self.draws else 0
        return input.new_empty(units * each * input.element_size() + masks + _KEY, dtype=torch.uint8)


_KEY = 16
"""Bytes of the generator state that dropout starts from, stored in the reserve."""


@contextmanager
def _generator_at(key: Tensor) -> Iterator[None]:
    """Set the default generator to the state in `key`, for the duration of the context."""
    default = torch.default_generator
    before = default.get_state()
    default.set_state(philox.generator(*philox.unpack(key)).get_state())
    try:
        yield
    finally:
        default.set_state(before)


@kernel("_cudnn_rnn")
def _cudnn_rnn(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor | None, hx: Tensor,
    cx: Tensor | None, mode: int, hidden_size: int, proj_size: int, num_layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return output, last states, the reserve for backward and the flattened weights (never read)."""
    layers = _Layers(
        mode, hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )
    reserve = layers.reserve(input)
    if input.is_meta:
        out = layers.shapes(input, hx, cx)
    elif layers.draws:
        reserve[:_KEY].copy_(philox.pack(*philox.token(torch.default_generator)))
        with _generator_at(reserve[:_KEY]):
            out = layers.run(input, weight, weight_stride0 >= 4, hx, cx)
        torch.rand(1)  # advance the generator, so that the next call draws other numbers
    else:
        out = layers.run(input, weight, weight_stride0 >= 4, hx, cx)
    last = out[2] if cx is not None else input.new_empty(0)
    return out[0], out[1], last, reserve, input.new_empty(0) if weight_buf is None else weight_buf


@kernel("_cudnn_rnn_backward")
def _cudnn_rnn_backward(
    input: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor, hx: Tensor,
    cx: Tensor | None, output: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None,
    grad_cy: Tensor | None, mode: int, hidden_size: int, proj_size: int, num_layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int], dropout_state: Tensor | None,
    reserve: Tensor, output_mask: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Return gradients of the input, the states and each weight, by running the layers again."""
    layers = _Layers(
        mode, hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes
    )
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    inputs = [input, hx, *([] if cx is None else [cx]), *weight]
    if input.is_meta:
        gradients: list[Tensor] = [torch.empty_like(tensor) for tensor in inputs]
    else:
        drawn = _generator_at(reserve[:_KEY]) if layers.draws else nullcontext()
        with drawn, SetExcludedKey(_AUTOGRAD, False), torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in inputs]
            weights = inputs[len(inputs) - len(weight) :]
            cell = None if cx is None else inputs[2]
            out = layers.run(inputs[0], weights, weight_stride0 >= 4, inputs[1], cell)
            pairs = [
                (result, grad)
                for result, grad in zip(out, (grad_output, grad_hy, grad_cy), strict=False)
                if grad is not None
            ]
            outputs, grads = zip(*pairs, strict=True)
            gradients = list(torch.autograd.grad(outputs, inputs, grads, allow_unused=True))
    wanted = [output_mask[0], output_mask[1], *([] if cx is None else [output_mask[2]])]
    first = [gradient if keep else None for gradient, keep in zip(gradients, wanted, strict=False)]
    return *(*first, None)[:3], gradients[len(wanted) :] if output_mask[3] else []


@kernel("_cudnn_rnn_flatten_weight")
def _flatten_weights(
    weight_arr: list[Tensor],
    weight_stride0: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> Tensor:
    """Move the weights into one buffer, as cuDNN wants them, and return it."""
    buffer = torch.cat([weight.reshape(-1) for weight in weight_arr])
    parts = buffer.split([weight.numel() for weight in weight_arr])
    for weight, part in zip(weight_arr, parts, strict=True):
        weight.set_(part.view(weight.shape))
    return buffer


@kernel("_cudnn_init_dropout_state")
def _dropout_state(dropout: float, train: bool, dropout_seed: int, **options: Any) -> Tensor:
    """Return an empty dropout state: the emulation draws from the CPU's generator."""
    return torch.zeros(0, dtype=torch.uint8)
