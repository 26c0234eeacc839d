"""Run recurrent layers and cells as CUDA does: a layer as one cuDNN operator, a cell as one fused kernel.

C++ chooses by the storages' device, the CPU here, and would run a loop of small operators.
Rules: `aten/src/ATen/native/RNN.cpp` (`use_cudnn`, `LSTMCell`, `GRUCell`).
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.core.transfers import unpacks_itself
from gapless.emulation.dispatch.autocast_kernels import rnn_dtype
from gapless.emulation.dispatch.functions import FunctionMode, handles
from gapless.emulation.kernels.recurrent_kernels import KINDS
from gapless.torch_internals import VERSION, functorch, no_torch_function

Tensor = torch.Tensor
_aten: Any = torch.ops.aten
_CUDNN_DTYPES = {torch.float16, torch.float32, torch.float64}
if VERSION >= (2, 10):
    _CUDNN_DTYPES.add(torch.bfloat16)
_LSTM = KINDS.index(torch.lstm)


@handles(*KINDS)
def _layers(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) != 9 or not _is_plain_device_tensor(mode, args[0]):
        return func(*args, **kwargs)
    packed = not isinstance(args[3], bool)  # a packed sequence: batch sizes come second
    data, (hidden, weights) = args[0], args[2:4] if packed else args[1:3]
    biased, layers, dropout, train, both = args[4:9] if packed else args[3:8]
    states = list(hidden) if func is torch.lstm else [hidden]
    if torch.is_autocast_enabled("cuda") and data.is_floating_point() and data.dtype is not torch.float64:
        low = rnn_dtype(data)
        data, *rest = (tensor.to(low) for tensor in (data, *states, *weights))
        states, weights = rest[: len(states)], rest[len(states) :]
    if data.dtype not in _CUDNN_DTYPES or not torch.backends.cudnn.enabled or not data.numel():
        return func(*args)
    each = (4 if biased else 2) + (len(states) == 2 and states[0].shape[-1] != states[1].shape[-1])
    number = KINDS.index(func)
    size = states[-1].shape[-1]
    projected = states[0].shape[-1] if each % 2 else 0
    out, h, c, _, _ = _aten._cudnn_rnn(
        data, list(weights), each, None, states[0], states[1] if number == _LSTM else None, number, size,
        projected, layers, False if packed else args[8], dropout, train, both,
        args[1].tolist() if packed else [], None,
    )  # fmt: skip
    return (out, h, c) if number == _LSTM else (out, h)


@handles(torch.lstm_cell, torch.gru_cell)
def _cell(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) not in (4, 6) or not _is_plain_device_tensor(mode, args[0]):
        return func(*args, **kwargs)
    data, hidden, from_data, from_hidden, *biases = args
    states = list(hidden) if func is torch.lstm_cell else [hidden]
    if data.shape[-1] != from_data.shape[-1] or states[0].shape != (len(data), from_hidden.shape[-1]):
        return func(*args)  # raises torch's error
    gates = data @ from_data.t(), states[0] @ from_hidden.t()
    if func is torch.lstm_cell:
        return _aten._thnn_fused_lstm_cell(*gates, states[1], *biases)[:2]
    return _aten._thnn_fused_gru_cell(*gates, states[0], *biases)[0]


def _is_plain_device_tensor(mode: FunctionMode, tensor: Any) -> bool:
    """Whether `tensor` is on the device, no overriding subclass, and in no functorch transform."""
    if not mode.on_device(tensor) or functorch.maybe_current_level() is not None:
        return False
    kind: Any = type(tensor)
    return kind in (Tensor, torch.nn.Parameter) or (
        kind.__torch_function__ is no_torch_function and unpacks_itself(kind)
    )
