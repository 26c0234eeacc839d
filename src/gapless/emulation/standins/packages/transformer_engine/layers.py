"""``transformer_engine.pytorch``: Linear, LayerNorm, RMSNorm, LayerNormLinear and LayerNormMLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.norms import normalize
from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

_MODULES = ("transformer_engine.pytorch", "transformer_engine.pytorch.module")
_ONE_PROCESS = "the stand-in for Transformer Engine is not split over processes (tp_size, sequence_parallel)"


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, rms: bool, centered: bool, dtype: torch.dtype
) -> Tensor:
    def body(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return normalize(x, tuple(weight.shape), weight, bias, eps, rms=rms, centered=centered).to(dtype)

    name = "rmsnorm" if rms else "layernorm"
    return differentiable(  # type: ignore[no-any-return]
        f"transformer_engine::{name}_fwd", body, x, weight, bias, backward=f"transformer_engine::{name}_bwd"
    )


def _active_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


@PACKAGE.provides(*_MODULES)
class LayerNorm(nn.Module):
    """Layer norm over the last dimensions."""

    _rms = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: Any = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: Any = None,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        shape = normalized_shape if normalized_shape is not None else hidden_size
        self.normalized_shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        options = {"device": device, "dtype": dtype or params_dtype or torch.get_default_dtype()}
        first = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = nn.Parameter(first(self.normalized_shape, **options))
        if not self._rms:
            self.bias = nn.Parameter(torch.zeros(self.normalized_shape, **options))

    def forward(self, x: Tensor) -> Tensor:
        """`x` normalized."""
        bias = None if self._rms else self.bias
        return _norm(x, self.weight, bias, self.eps, self._rms, self.zero_centered_gamma, _active_dtype(x))


@PACKAGE.provides(*_MODULES)
class RMSNorm(LayerNorm):
    """RMS norm over the last dimensions."""

    _rms = True


@PACKAGE.provides("transformer_engine.pytorch.module.base")
class TransformerEngineBaseModule(nn.Module):
    """The common base of layers with matrix products."""

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Accept a group of one process.

        Raises:
            NotImplementedError: there are more.
        """
        if tp_group is not None and tp_group.size() > 1:
            raise NotImplementedError(_ONE_PROCESS)


@PACKAGE.provides(*_MODULES)
class Linear(TransformerEngineBaseModule):
    """A linear layer.

    Raises:
        NotImplementedError: it is split over processes, or its parameters are split by name.
    """

    bias: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        parameters_split: Any = None,
        device: Any = "cuda",
        **_: Any,
    ) -> None:
        super().__init__()
        if tp_size != 1 or sequence_parallel or parameters_split is not None:
            raise NotImplementedError(_ONE_PROCESS)
        options = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        self.weight = nn.Parameter(torch.empty(out_features, in_features, **options))
        (init_method or partial(nn.init.normal_, std=0.023))(self.weight)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features, **options)) if bias else None)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """Return the projection; with `return_bias` also the bias, not added."""
        out = functional.linear(inp, self.weight, None if self.return_bias else self.bias)
        return (out, self.bias) if self.return_bias else out


@PACKAGE.provides(*_MODULES)
class GroupedLinear(TransformerEngineBaseModule):
    """Several linear layers, each of which takes its own rows of the input.

    Raises:
        NotImplementedError: it is split over processes.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **_: Any,
    ) -> None:
        super().__init__()
        if tp_size != 1 or sequence_parallel:
            raise NotImplementedError(_ONE_PROCESS)
        options = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        for number in range(num_gemms):
            weight = nn.Parameter(torch.empty(out_features, in_features, **options))
            (init_method or partial(nn.init.normal_, std=0.023))(weight)
            self.register_parameter(f"weight{number}", weight)
            self.register_parameter(
                f"bias{number}", nn.Parameter(torch.zeros(out_features, **options)) if bias else None
            )

    def forward(
        self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None, **_: Any
    ) -> Any:
        """Return the projections of `inp`; layer i takes ``m_splits[i]`` rows.

        With `return_bias` the biases are given apart.
        """
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        biases = [getattr(self, f"bias{number}") for number in range(self.num_gemms)]
        added = [None] * self.num_gemms if self.return_bias else biases
        parts = inp.view(-1, self.in_features).split(list(m_splits))
        out = torch.cat(list(map(functional.linear, parts, weights, added)))
        out = out.view(*inp.shape[:-1], self.out_features)
        return (out, biases) if self.return_bias else out


@PACKAGE.provides(*_MODULES)
class LayerNormLinear(Linear):
    """A norm and a linear layer.

    Raises:
        NotImplementedError: it is split over processes, or its parameters are split by name.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Any = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        **_: Any,
    ) -> None:
        super().__init__(
            in_features, out_features, sequence_parallel, tp_size=tp_size, init_method=init_method, bias=bias,
            return_bias=return_bias, params_dtype=params_dtype, parameters_split=parameters_split,
            device=device,
        )  # fmt: skip
        self.eps, self.return_layernorm_output = eps, return_layernorm_output
        self.normalization, self.zero_centered_gamma = normalization, zero_centered_gamma
        _add_norm(self, in_features, normalization, zero_centered_gamma)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """Return the projection of the norm; with `return_layernorm_output` the norm too."""
        normed = _own_norm(self, inp)
        out = super().forward(normed)
        if not self.return_layernorm_output:
            return out
        return (*out, normed) if isinstance(out, tuple) else (out, normed)


def _add_norm(module: Any, size: int, normalization: str, centered: bool) -> None:
    like = module.weight if hasattr(module, "weight") else module.fc1_weight
    options = {"device": like.device, "dtype": like.dtype}
    module.layer_norm_weight = nn.Parameter((torch.zeros if centered else torch.ones)(size, **options))
    bias = nn.Parameter(torch.zeros(size, **options)) if normalization == "LayerNorm" else None
    module.register_parameter("layer_norm_bias", bias)


def _own_norm(module: Any, x: Tensor) -> Tensor:
    rms = module.normalization != "LayerNorm"
    return _norm(
        x,
        module.layer_norm_weight,
        module.layer_norm_bias,
        module.eps,
        rms,
        module.zero_centered_gamma,
        _active_dtype(x),
    )


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "srelu": lambda x: functional.relu(x).square(),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
}
_GATED = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu", "sreglu": "srelu", "qgeglu": "qgelu"}


@PACKAGE.provides(*_MODULES)
class LayerNormMLP(TransformerEngineBaseModule):
    """A norm and two linear layers with an activation in between, gated or not.

    Raises:
        NotImplementedError: it is split over processes.
        ValueError: another activation.
    """

    fc1_bias: Any
    fc2_bias: Any

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: Any = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        **_: Any,
    ) -> None:
        super().__init__()
        if tp_size != 1 or sequence_parallel:
            raise NotImplementedError(_ONE_PROCESS)
        if activation not in (*_ACTIVATIONS, *_GATED):
            raise ValueError(f"LayerNormMLP: the stand-in does not support the activation {activation!r}")
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.activation, self.return_bias = activation, return_bias
        self.return_layernorm_output = return_layernorm_output
        options = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        wide = ffn_hidden_size * (2 if activation in _GATED else 1)
        self.fc1_weight = nn.Parameter(torch.empty(wide, hidden_size, **options))
        self.fc2_weight = nn.Parameter(torch.empty(hidden_size, ffn_hidden_size, **options))
        normal = partial(nn.init.normal_, std=0.023)
        (init_method or normal)(self.fc1_weight)
        (output_layer_init_method or init_method or normal)(self.fc2_weight)
        for name, size in (("fc1_bias", wide), ("fc2_bias", hidden_size)):
            self.register_parameter(name, nn.Parameter(torch.zeros(size, **options)) if bias else None)
        _add_norm(self, hidden_size, normalization, zero_centered_gamma)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        """Return the second layer's result; with `return_bias` and `return_layernorm_output` these too."""
        normed = _own_norm(self, inp)
        hidden = self._activate(functional.linear(normed, self.fc1_weight, self.fc1_bias))
        out = functional.linear(hidden, self.fc2_weight, None if self.return_bias else self.fc2_bias)
        more: list[Any] = [self.fc2_bias] if self.return_bias else []
        more += [normed] if self.return_layernorm_output else []
        return (out, *more) if more else out

    def _activate(self, x: Tensor) -> Tensor:
        gated = self.activation in _GATED
        activation = _ACTIVATIONS[_GATED.get(self.activation, self.activation)]

        def body(x: Tensor) -> Tensor:
            gate, *value = x.float().chunk(2, -1) if gated else (x.float(),)
            out = activation(gate)
            return (out * value[0] if value else out).to(x.dtype)

        name = f"transformer_engine::{self.activation}"
        return differentiable(name, body, x, backward=f"transformer_engine::d{self.activation}")  # type: ignore[no-any-return]
