"""``apex.optimizers`` and ``apex.multi_tensor_apply``: a step in a few kernels over all parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins import multi_tensor
from gapless.emulation.standins.packages.apex._package import PACKAGE

_MULTI = ("apex.multi_tensor_apply", "apex.multi_tensor_apply.multi_tensor_apply")
_Lists = list[list[Tensor]]
_Group = tuple[dict[str, Any], list[_Lists]]
_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
PACKAGE.holds("apex.optimizers")


@PACKAGE.provides(*_MULTI)
class MultiTensorApply:
    """Calls a kernel of ``amp_C`` with the chunk size that it was made with."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """It is."""

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Any, *args: Any
    ) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
PACKAGE.holds(_MULTI[0], multi_tensor_applier=multi_tensor_applier)


class _Fused(torch.optim.Optimizer):
    """The base of the optimizers: lists of parameters by dtype, each updated by one kernel."""

    dtypes: tuple[torch.dtype, ...] = (_HALF, _BRAIN, _SINGLE)
    _package = "apex"
    _states: tuple[str, ...] = ()
    """Names of each parameter's states, and whether they are always float32 (`_wide`)."""
    _wide = False

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], set_grad_none: bool = True) -> None:
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none
        first = self.param_groups[0]["params"][0]
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device=first.device)

    def zero_grad(self, set_to_none: bool | None = None) -> None:  # type: ignore[override]
        """Drop the gradients, or make them zeros where the optimizer was told so."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    def step(self, closure: Any = None, *_: Any, **__: Any) -> Any:
        """Update all parameters: one kernel per group and dtype, or as many as the optimizer needs."""
        loss = closure() if closure is not None else None
        self._update([(group, list(self._lists(group))) for group in self.param_groups])
        return loss

    def _update(self, groups: list[_Group]) -> None:
        """Launch the kernels of a step, for each group and its lists."""
        raise NotImplementedError

    def _lists(self, group: dict[str, Any]) -> Iterator[_Lists]:
        """Yield gradients, parameters and states of a group, by dtype."""
        states = self._states
        by_dtype: dict[torch.dtype, _Lists] = defaultdict(lambda: [[], [], *([] for _ in states)])
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            name = type(self).__name__
            if parameter.grad.is_sparse:
                raise RuntimeError(f"{name} does not support sparse gradients")
            if parameter.dtype not in self.dtypes:
                raise RuntimeError(f"{name} does not support {parameter.dtype}")
            state = self.state[parameter]
            for key in states:
                if key not in state:
                    state[key] = torch.zeros_like(parameter.data, dtype=_SINGLE if self._wide else None)
            for held, tensor in zip(
                by_dtype[parameter.dtype],
                (parameter.grad.data, parameter.data, *map(state.get, states)),
                strict=True,
            ):
                held.append(tensor)
        for dtype in self.dtypes:
            if dtype in by_dtype:
                yield by_dtype[dtype]

    def _count_steps(self, group: dict[str, Any]) -> int:
        group["step"] = group.get("step", 0) + 1
        return int(group["step"])


@PACKAGE.provides("apex.optimizers", "apex.optimizers.fused_adam")
class FusedAdam(_Fused):
    """Adam, or with `adam_w_mode` AdamW.

    Raises:
        RuntimeError: AMSGrad is asked for, or master weights or a capturable one, which the stand-in lacks.
    """

    _states = ("exp_avg", "exp_avg_sq")
    _wide = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable or master_weights:
            raise RuntimeError(
                "the stand-in for apex's FusedAdam is not capturable and keeps no master weights"
            )
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self.adam_w_mode = int(adam_w_mode)

    def _update(self, groups: list[_Group]) -> None:
        for group, lists_of_group in groups:
            step = self._count_steps(group)
            for lists in lists_of_group:
                beta1, beta2 = group["betas"]
                multi_tensor.adam(
                    self._package, 0, None, lists, group["lr"], beta1, beta2, group["eps"], step,
                    self.adam_w_mode, int(group["bias_correction"]), group["weight_decay"],
                )  # fmt: skip


@PACKAGE.provides("apex.optimizers", "apex.optimizers.fused_sgd")
class FusedSGD(_Fused):
    """SGD with momentum."""

    dtypes = (_HALF, _SINGLE)
    _states = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self.wd_after_momentum = wd_after_momentum

    def _update(self, groups: list[_Group]) -> None:
        for group, lists_of_group in groups:
            first = not group.get("_began", False)
            group["_began"] = True
            for lists in lists_of_group:
                multi_tensor.sgd(
                    self._package, 0, None, lists, group["weight_decay"], group["momentum"],
                    group["dampening"], group["lr"], group["nesterov"], first, self.wd_after_momentum, 1.0,
                )  # fmt: skip


@PACKAGE.provides("apex.optimizers", "apex.optimizers.fused_lamb")
class FusedLAMB(_Fused):
    """LAMB, with gradients clipped to a norm over all groups."""

    dtypes = (_HALF, _SINGLE)
    _states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay, "grad_averaging": grad_averaging, "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self.adam_w_mode, self.use_nvlamb = int(adam_w_mode), use_nvlamb

    def _update(self, groups: list[_Group]) -> None:
        """Launch the norm of all gradients, and two norms and two kernels per group and dtype."""
        device = self.param_groups[0]["params"][0].device
        norms = {dtype: torch.zeros(1, device=device) for dtype in self.dtypes}
        for dtype in self.dtypes:
            of_dtype = [
                g
                for _, lists_of_group in groups
                for lists in lists_of_group
                for g in lists[0]
                if g.dtype is dtype
            ]
            if of_dtype:
                norms[dtype] = multi_tensor.l2norm(self._package, 0, None, [of_dtype])[0]
        norm = multi_tensor.l2norm(self._package, 0, None, [list(norms.values())])[0]
        for group, lists_of_group in groups:
            step = self._count_steps(group)
            for lists in lists_of_group:
                beta1, beta2 = group["betas"]
                multi_tensor.lamb(
                    self._package, 0, None, lists, group["lr"], beta1, beta2, group["eps"], step,
                    int(group["bias_correction"]), group["weight_decay"], int(group["grad_averaging"]),
                    self.adam_w_mode, norm, self.defaults["max_grad_norm"], self.use_nvlamb,
                )  # fmt: skip


@PACKAGE.provides("apex.optimizers", "apex.optimizers.fused_adagrad")
class FusedAdagrad(_Fused):
    """Adagrad."""

    dtypes = (_HALF, _SINGLE)
    _states = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, set_grad_none)
        self.adagrad_w_mode = int(adagrad_w_mode)

    def _update(self, groups: list[_Group]) -> None:
        for group, lists_of_group in groups:
            for lists in lists_of_group:
                multi_tensor.adagrad(
                    self._package, 0, None, lists, group["lr"], group["eps"], self.adagrad_w_mode,
                    group["weight_decay"],
                )  # fmt: skip


@PACKAGE.provides("apex.optimizers", "apex.optimizers.fused_novograd")
class FusedNovoGrad(_Fused):
    """NovoGrad: momentum of gradients that are divided by a running norm of each.

    The first step reads the norm of each gradient, unless the norms begin with zero.
    """

    dtypes = (_HALF, _SINGLE)
    _states = ("exp_avg",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedNovoGrad does not support the AMSGrad variant.")
        if norm_type not in (0, 2):
            raise RuntimeError("FusedNovoGrad only support l2/inf norm now.")
        defaults = {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay, "grad_averaging": grad_averaging, "norm_type": norm_type,
            "init_zero": init_zero,
        }  # fmt: skip
        super().__init__(params, defaults, set_grad_none)
        self.moment_mode = int(not reg_inside_moment)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and move norms to the device of their parameters."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            device = group["params"][0].device
            if "exp_avg_sq" in group:
                group["exp_avg_sq"] = [
                    norm if norm is None else norm.to(device) for norm in group["exp_avg_sq"]
                ]

    def _update(self, groups: list[_Group]) -> None:
        for group, lists_of_group in groups:
            step = self._count_steps(group)
            held = group.setdefault("exp_avg_sq", [None] * len(self.dtypes))
            for lists in lists_of_group:
                at = self.dtypes.index(lists[0][0].dtype)
                if held[at] is None:
                    held[at] = self._first_norms(group, lists[0])
                beta1, beta2 = group["betas"]
                multi_tensor.novograd(
                    self._package, 0, None, lists, held[at], group["lr"], beta1, beta2, group["eps"], step,
                    int(group["bias_correction"]), group["weight_decay"], int(group["grad_averaging"]),
                    self.moment_mode, group["norm_type"],
                )  # fmt: skip

    @staticmethod
    def _first_norms(group: dict[str, Any], gradients: list[Tensor]) -> Tensor:
        """Return zeros, or the norms of the first gradients, so that averaging them changes nothing."""
        device = gradients[0].device
        if group["init_zero"]:
            return torch.zeros(len(gradients), device=device)
        if group["norm_type"] == 0:
            return torch.tensor(
                [gradient.float().abs().max().item() for gradient in gradients], device=device
            )
        return torch.tensor(
            [gradient.float().pow(2).sum().sqrt().item() for gradient in gradients], device=device
        )
