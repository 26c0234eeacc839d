"""One step of a recurrent cell in one kernel, and cuDNN's recurrent layers."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulate.kernels import kernel

Tensor = torch.Tensor


@kernel("_thnn_fused_lstm_cell")
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell state, and the four gates behind their activations."""
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
    """The new hidden state; for backward three gates, the old state and the new gate's hidden part."""
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


_KINDS = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
"""cuDNN's layers, by the number that it calls them with."""


@kernel("_cudnn_rnn")
def _cudnn_rnn(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, last states, a reserve for backward (empty here: nothing reads it), the flattened weights."""
    kind: Any = _KINDS[mode]
    state: Any = hx if cx is None else (hx, cx)
    biased = weight_stride0 == 4
    settings: tuple[Any, ...] = (biased, num_layers, dropout, train, bidirectional)
    if batch_sizes:
        out = kind(input, torch.tensor(batch_sizes), state, weight, *settings)
    else:
        out = kind(input, state, weight, *settings, batch_first)
    last = out[2] if cx is not None else input.new_empty(0)
    return out[0], out[1], last, input.new_empty(0, dtype=torch.uint8), weight_buf or input.new_empty(0)


@kernel("_cudnn_rnn_flatten_weight")
def _flattened(
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
    return torch.cat([one.reshape(-1) for one in weight_arr])


@kernel("_cudnn_init_dropout_state")
def _dropout_state(dropout: float, train: bool, dropout_seed: int, **options: Any) -> Tensor:
    """Memory for the states of cuDNN's generators; here it says nothing."""
    return torch.zeros(0, dtype=torch.uint8)
