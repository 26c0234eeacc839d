"""``mamba_ssm.Mamba`` and ``Mamba2``: the layers, for whole sequences."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from gapless.emulation.standins.packages.mamba_ssm._package import PACKAGE
from gapless.emulation.standins.packages.mamba_ssm.chunks import mamba_split_conv1d_scan_combined
from gapless.emulation.standins.packages.mamba_ssm.norms import RMSNorm
from gapless.emulation.standins.packages.mamba_ssm.scan import mamba_inner_fn
from gapless.emulation.support.refusals import refuse


def _steps(count: int, least: float, most: float, floor: float, **options: Any) -> Tensor:
    """Return biases whose softplus is log-uniform between `least` and `most`."""
    spread = torch.rand(count, **options) * (math.log(most) - math.log(least)) + math.log(least)
    steps = torch.exp(spread).clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


def _kept(tensor: Tensor, mark: str = "_no_weight_decay") -> nn.Parameter:
    parameter = nn.Parameter(tensor)
    setattr(parameter, mark, True)
    return parameter


def _no_cache(inference_params: Any) -> None:
    if inference_params is not None:
        raise refuse("mamba_ssm's generation with a cache", "The stand-in supports whole sequences only.")


@PACKAGE.provides("mamba_ssm", "mamba_ssm.modules.mamba_simple")
class Mamba(nn.Module):
    """A layer with a selective scan over `expand` times its width."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        inner = int(expand * d_model)
        rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner, self.dt_rank, self.layer_idx, self.use_fast_path = inner, rank, layer_idx, use_fast_path
        self.in_proj = nn.Linear(d_model, inner * 2, bias=bias, **options)
        self.conv1d = nn.Conv1d(
            inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=conv_bias, **options
        )
        self.activation, self.act = "silu", nn.SiLU()
        self.x_proj = nn.Linear(inner, rank + d_state * 2, bias=False, **options)
        self.dt_proj = nn.Linear(rank, inner, bias=True, **options)
        spread = rank**-0.5 * dt_scale
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, spread)
        else:
            nn.init.uniform_(self.dt_proj.weight, -spread, spread)
        with torch.no_grad():
            self.dt_proj.bias.copy_(_steps(inner, dt_min, dt_max, dt_init_floor, **options))
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]
        states = torch.arange(1, d_state + 1, dtype=torch.float32, device=device)
        self.A_log = _kept(torch.log(states.repeat(inner, 1)))
        self.D = _kept(torch.ones(inner, device=device))
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **options)

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        """``[batch, length, d_model]``, both ways."""
        _no_cache(inference_params)
        both = self.in_proj(hidden_states).transpose(1, 2)
        return mamba_inner_fn(
            both,
            self.conv1d.weight,
            self.conv1d.bias,
            self.x_proj.weight,
            self.dt_proj.weight,
            self.out_proj.weight,
            self.out_proj.bias,
            -torch.exp(self.A_log.float()),
            D=self.D.float(),
            delta_bias=self.dt_proj.bias.float(),
        )


@PACKAGE.provides("mamba_ssm", "mamba_ssm.modules.mamba2")
class Mamba2(nn.Module):
    """A layer with a scan over heads.

    Raises:
        NotImplementedError: it is split over processes, or only a part of it scans.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: Any = None,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        inner = expand * d_model
        if process_group is not None or d_ssm not in (None, inner):
            raise NotImplementedError(
                "the stand-in for mamba_ssm's Mamba2 takes neither process_group nor d_ssm"
            )
        options = {"device": device, "dtype": dtype}
        self.d_model, self.d_state, self.d_conv, self.d_inner = d_model, d_state, d_conv, inner
        self.headdim, self.ngroups, self.nheads, self.chunk_size = (
            headdim,
            ngroups,
            inner // headdim,
            chunk_size,
        )
        self.dt_limit, self.norm_before_gate, self.rmsnorm = dt_limit, norm_before_gate, rmsnorm
        self.layer_idx, self.D_has_hdim, self.activation = layer_idx, D_has_hdim, "silu"
        wide = inner + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, inner + wide + self.nheads, bias=bias, **options)
        self.conv1d = nn.Conv1d(
            wide, wide, d_conv, groups=wide, padding=d_conv - 1, bias=conv_bias, **options
        )
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        self.act = nn.SiLU()
        self.dt_bias = _kept(_steps(self.nheads, dt_min, dt_max, dt_init_floor, **options))
        rates = torch.empty(self.nheads, dtype=torch.float32, device=device).uniform_(*A_init_range)
        self.A_log = _kept(torch.log(rates).to(dtype=dtype))
        self.D = _kept(torch.ones(inner if D_has_hdim else self.nheads, device=device))
        if rmsnorm:
            self.norm = RMSNorm(inner, 1e-5, inner // ngroups, norm_before_gate, **options)
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **options)

    def forward(
        self, u: Tensor, seqlen: int | None = None, seq_idx: Tensor | None = None, cu_seqlens: Any = None,
        inference_params: Any = None,
    ) -> Tensor:  # fmt: skip
        """``[batch, length, d_model]``, both ways; with `seqlen` batch and length are one axis."""
        _no_cache(inference_params)
        projected = self.in_proj(u)
        projected = projected if seqlen is None else projected.unflatten(0, (-1, seqlen))
        skip = self.D.unflatten(0, (-1, self.headdim)) if self.D_has_hdim else self.D
        out: Tensor = mamba_split_conv1d_scan_combined(
            projected,
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            self.dt_bias,
            -torch.exp(self.A_log.float()),
            skip,
            self.chunk_size,
            seq_idx=seq_idx,
            dt_limit=self.dt_limit,
            activation=self.activation,
            rmsnorm_weight=self.norm.weight if self.rmsnorm else None,
            rmsnorm_eps=self.norm.eps if self.rmsnorm else 1e-6,
            outproj_weight=self.out_proj.weight,
            outproj_bias=self.out_proj.bias,
            headdim=None if self.D_has_hdim else self.headdim,
            ngroups=self.ngroups,
            norm_before_gate=self.norm_before_gate,
        )
        return out if seqlen is None else out.flatten(0, 1)
