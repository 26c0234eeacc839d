"""Skip optimizer steps on the device, without reading the condition."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gapless.errors import UsageError
from gapless.torch_internals import foreach_norm


def all_finite(tensors: Tensor | Iterable[Tensor]) -> Tensor:
    """Return whether all elements of all `tensors` are finite: a 0-dim bool tensor on the device of the
    first.

    Replaces::

        if all(torch.isfinite(p.grad).all() for p in model.parameters()): ...   # reads once for each
        finite = ops.all_finite(p.grad for p in model.parameters())

    Without elements it is true; without tensors, on the CPU.
    """
    present = (
        [tensors] if isinstance(tensors, Tensor) else [tensor for tensor in tensors if tensor is not None]
    )
    nonempty = [tensor.detach() for tensor in present if tensor.numel() > 0]
    if not nonempty:
        return torch.ones((), dtype=torch.bool, device=present[0].device if present else None)
    answers = []
    groups: dict[Any, list[Tensor]] = {}
    for tensor in nonempty:
        kind = (tensor.device, tensor.dtype, tensor.layout)
        groups.setdefault(kind, []).append(tensor)
    for (device, dtype, layout), group in groups.items():
        if layout != torch.strided:
            answers += [tensor.coalesce().values().isfinite().all() for tensor in group]
        elif dtype.is_floating_point and device.type == "cuda":
            # The largest absolute value is finite if all are; it cannot overflow, and is NaN if one is.
            answers.append(torch.stack(foreach_norm(group, torch.inf)).isfinite().all())
        elif dtype.is_floating_point or dtype.is_complex:
            answers += [tensor.isfinite().all() for tensor in group]
    if not answers:  # integers
        return torch.ones((), dtype=torch.bool, device=nonempty[0].device)
    home = answers[0].device
    return torch.stack([answer.to(home, non_blocking=True) for answer in answers]).all()


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    foreach: bool | None = None,
    nonfinite: str = "keep",
) -> Tensor:
    """Scale the gradients in place so that their total norm is at most `max_norm`; return the norm before.

    Never reads the norm. If it is not finite, ``nonfinite="keep"`` does what torch does (the gradients become
    NaN or 0), and ``"zero"`` sets all gradients to 0. To skip such a step, use
    ``step_if(optimizer, norm.isfinite())``.

    Replaces::

        norm = nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)   # reads the norm
        norm = ops.clip_grad_norm_(parameters, 1.0, nonfinite="zero")

    Raises:
        ValueError: `nonfinite` is neither "keep" nor "zero".
    """
    if nonfinite not in ("keep", "zero"):
        raise ValueError(f'nonfinite must be "keep" or "zero", but got {nonfinite!r}')
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    norm = torch.nn.utils.clip_grad_norm_(tensors, max_norm, norm_type, foreach=foreach)
    if nonfinite == "zero":
        finite = norm.isfinite()
        for parameter in tensors:
            if parameter.grad is not None:
                grad = parameter.grad
                grad.copy_(torch.where(finite.to(grad.device, non_blocking=True), grad, 0))
    return norm


def step_if(optimizer: Optimizer, condition: Tensor) -> None:
    """Run ``optimizer.step()`` if the 0-dim bool `condition` is true; otherwise change nothing.

    Replaces::

        if torch.isfinite(loss):
            optimizer.step()
        ops.step_if(optimizer, torch.isfinite(loss))

    On a GPU the condition is not read. Torch's ``fused=True`` optimizers skip in their kernel, as under
    ``GradScaler``; for others a copy of parameters and state is restored with ``where``, which needs their
    memory once more, so prefer ``fused=True``. **The first step** of an optimizer that creates its state then
    **waits** once, because a skipped step must not create it. For a condition on the CPU this is an ``if``.
    Counts on the host (a scheduler's, for example) include skipped steps.

    Adam and others that count steps on the host (AdamW, NAdam, RMSprop, …) become ``capturable=True``: they
    then count on the device, without skipped steps. Adagrad's count has no effect without ``lr_decay`` and
    includes skipped steps.

    Raises:
        UsageError: a step changes numbers on the host that no argument moves to the device: they cannot be
            restored without a read. Or a step evaluates a closure, as that of LBFGS.
        ValueError: the condition is not a bool tensor of one element.
    """
    if condition.dtype != torch.bool or condition.numel() != 1:
        raise ValueError(
            f"expected one bool as condition, but got {condition.dtype} of shape {tuple(condition.shape)}"
        )
    condition = condition.detach().reshape(())
    _refuse_closure(optimizer)
    if condition.device.type == "cpu":
        if condition:
            optimizer.step()
        return
    _count_on_device(optimizer)
    if _has_state(optimizer) and getattr(optimizer, "_step_supports_amp_scaling", False):
        _step_with_found_inf(optimizer, condition)
    else:
        _step_and_restore(optimizer, condition)


def step_if_finite(optimizer: Optimizer) -> Tensor:
    """Run a step if all gradients of `optimizer` are finite; return that condition, a 0-dim bool tensor.

    Replaces::

        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        finite = ops.step_if_finite(optimizer)
    """
    finite = all_finite(
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    )
    step_if(optimizer, finite)
    return finite


def _parameters_with_gradients(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that a step changes."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _refuse_closure(optimizer: Optimizer) -> None:
    """Raise UsageError if a step evaluates the model itself, and reads the loss."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UsageError(
            f"{type(optimizer).__name__} evaluates a closure in each step and reads the loss, which syncs: "
            "write `if condition: optimizer.step(closure)`"
        )


def _count_on_device(optimizer: Optimizer) -> None:
    """Make an optimizer that can count its steps on the device do so, from its present count."""
    for group in optimizer.param_groups:
        on_device = [parameter for parameter in group["params"] if parameter.device.type != "cpu"]
        if not on_device or group.get("fused") or group.get("capturable", True):
            continue
        group["capturable"] = optimizer.defaults["capturable"] = True
        for parameter in on_device:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 0:
                    state[name] = torch.full((), value.item(), dtype=value.dtype, device=parameter.device)


def _has_state(optimizer: Optimizer) -> bool:
    """Whether every parameter has its state, or steps create none."""
    if isinstance(optimizer, torch.optim.SGD) and not any(g["momentum"] for g in optimizer.param_groups):
        return True
    return all(
        any(isinstance(value, Tensor) for value in optimizer.state.get(parameter, {}).values())
        for parameter in _parameters_with_gradients(optimizer)
    )


def _step_with_found_inf(optimizer: Any, condition: Tensor) -> None:
    """Run a step whose kernels check the condition themselves."""
    previous = {
        name: getattr(optimizer, name) for name in ("grad_scale", "found_inf") if hasattr(optimizer, name)
    }
    optimizer.grad_scale = None
    optimizer.found_inf = (~condition).to(torch.float32)
    try:
        optimizer.step()
    finally:
        for name in ("grad_scale", "found_inf"):
            delattr(optimizer, name)
        for name, value in previous.items():
            setattr(optimizer, name, value)


@torch.no_grad()
def _step_and_restore(optimizer: Optimizer, condition: Tensor) -> None:
    """Run a step, and restore parameters and state if the condition is false."""
    parameters = _parameters_with_gradients(optimizer)
    before = [parameter.detach().clone() for parameter in parameters]
    states = {parameter: dict(optimizer.state.get(parameter, {})) for parameter in parameters}
    copies = {
        parameter: {
            name: value.clone()
            for name, value in state.items()
            if isinstance(value, Tensor) and value.device == parameter.device
        }
        for parameter, state in states.items()
    }
    _refuse_host_state(optimizer, parameters)
    optimizer.step()
    if _has_new_state(optimizer, parameters, states):
        if not condition:  # the only read: new state has to be removed on the host
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
                for name, value in copies[parameter].items():
                    states[parameter][name].copy_(value)
                if states[parameter]:
                    optimizer.state[parameter] = states[parameter]
                else:
                    optimizer.state.pop(parameter, None)
        _refuse_host_state(optimizer, parameters)
        return
    for parameter, old in zip(parameters, before, strict=True):
        _keep_if(condition, parameter, old)
        for name, value in copies[parameter].items():
            now = optimizer.state[parameter][name]
            _keep_if(condition, now, value)


def _keep_if(condition: Tensor, now: Tensor, before: Tensor) -> None:
    """Keep the value of `now` if the condition is true, else restore `before`."""
    now.copy_(torch.where(condition.to(now.device, non_blocking=True), now, before))


def _has_new_state(
    optimizer: Optimizer, parameters: list[Tensor], states: dict[Tensor, dict[str, Any]]
) -> bool:
    """Whether the step has created tensors of state."""
    return any(
        isinstance(value, Tensor) and not isinstance(states[parameter].get(name), Tensor)
        for parameter in parameters
        for name, value in optimizer.state.get(parameter, {}).items()
    )


def _refuse_host_state(optimizer: Optimizer, parameters: list[Tensor]) -> None:
    """Raise UsageError if a step changes numbers on the host."""
    decays = any(group.get("lr_decay") for group in optimizer.param_groups)
    if isinstance(optimizer, torch.optim.Adagrad) and not decays:
        return  # its count of steps has no effect
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            on_host = isinstance(value, Tensor) and value.device.type == "cpu"
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if parameter.device.type != "cpu" and (on_host or number):
                raise UsageError(
                    f"{type(optimizer).__name__} keeps {name!r} on the CPU, where a skipped step cannot be "
                    f"undone without a sync: {_advice(optimizer, number)}"
                )


def _advice(optimizer: Optimizer, number: bool) -> str:
    """Return what to write if a step cannot be restored; no argument moves a Python `number`."""
    arguments = {} if number else inspect.signature(type(optimizer).__init__).parameters
    options = [f"{name}=True" for name in ("fused", "capturable") if name in arguments]
    if "lr_decay" in arguments:
        options = ["lr_decay=0"]
    if options:
        return f"use {' or '.join(options)}"
    return "no argument changes that, so write `if condition: optimizer.step()`, which syncs"
