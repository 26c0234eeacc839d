"""Kernels that update many tensors at once: apex's, which other libraries adopted.

Each takes a chunk size and an overflow flag, which mostly do not matter here, and lists of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.launch import launch

Lists = Sequence[Sequence[Tensor]]


def _kernel(
    package: str, name: str, body: Callable[..., Any], lists: Lists, writes: Sequence[int], *rest: Any
) -> Any:
    """Launch ``body(lists, *rest)`` without gradients; it writes the lists with indices `writes`."""

    def without_gradients(lists: Lists, *rest: Any) -> Any:
        with torch.no_grad():
            return body(lists, *rest)

    written = [tensor for at in writes for tensor in lists[at]]
    return launch(
        f"{package}::{name}", without_gradients, [list(tensors) for tensors in lists], *rest, writes=written
    )


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def adam(
    package: str,
    chunk: int,
    stop: Any,
    lists: Lists,
    lr: Any,
    beta1: float,
    beta2: float,
    eps: float,
    step: Any,
    mode: int,
    correct: int,
    decay: float,
    inverse_scale: Any = None,
) -> None:
    """Adam over lists of gradients, parameters and both moments (and master weights); `mode` 1 is AdamW."""

    def body(lists: Lists, lr: Any, step: Any, inverse_scale: Any) -> None:
        adam_body(lists, lr, step, inverse_scale, beta1, beta2, eps, mode, correct, decay)

    _kernel(package, "multi_tensor_adam", body, lists, range(1, len(lists)), lr, step, inverse_scale)


def adam_body(
    lists: Lists,
    lr: Any,
    step: Any,
    inverse_scale: Any,
    beta1: float,
    beta2: float,
    eps: float,
    mode: int,
    correct: int,
    decay: float,
) -> None:
    """Compute the update of `adam`, in place."""
    step, lr, unscale = _value(step), _value(lr), _value(inverse_scale)
    c1, c2 = (1 - beta1**step, 1 - beta2**step) if correct else (1.0, 1.0)
    for grad, param, first, second, *master in zip(*lists, strict=True):
        g = grad.float() if unscale is None else grad.float() * unscale
        p = (master[0] if master else param).float()
        if decay and not mode:
            g = g + decay * p
        m = first.float() * beta1 + (1 - beta1) * g
        v = second.float() * beta2 + (1 - beta2) * g * g
        update = (m / c1) / ((v / c2).sqrt() + eps)
        if decay and mode:
            update = update + decay * p
        p = p - lr * update
        for target, new in ((param, p), (first, m), (second, v), *((copy, p) for copy in master)):
            target.copy_(new)


def sgd(
    package: str,
    chunk: int,
    stop: Any,
    lists: Lists,
    decay: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    decay_after_momentum: bool,
    scale: float,
) -> None:
    """SGD over lists of gradients, parameters and momenta (and copies of the model's parameters)."""

    def body(lists: Lists) -> None:
        for grad, param, buffer, *model in zip(*lists, strict=True):
            g, p = grad.float() * scale, param.float()
            if decay and not decay_after_momentum:
                g = g + decay * p
            if momentum:
                m = g if first_run else buffer.float() * momentum + (1 - dampening) * g
                buffer.copy_(m)
                g = g + momentum * m if nesterov else m
            if decay and decay_after_momentum:
                g = g + decay * p
            p = p - lr * g
            for target in (param, *model):
                target.copy_(p)

    _kernel(package, "multi_tensor_sgd", body, lists, range(1, len(lists)))


def l2norm(
    package: str, chunk: int, stop: Any, lists: Lists, per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors together, and of each if `per_tensor`."""

    def body(lists: Lists) -> tuple[Tensor, Tensor]:
        each = torch.stack([tensor.float().norm() for tensor in lists[0]])
        return each.norm().reshape(1), each if per_tensor else torch.empty(0)

    norms: tuple[Tensor, Tensor] = _kernel(package, "multi_tensor_l2norm", body, lists, ())
    return norms


def novograd(
    package: str,
    chunk: int,
    stop: Any,
    lists: Lists,
    norms: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    correct: int,
    decay: float,
    averaging: int,
    mode: int,
    norm_type: int,
) -> None:
    """NovoGrad over lists of gradients, parameters and momenta; `norms` are running norms of the gradients.

    Two kernels: the first updates the norms (`norm_type` 2: Euclidean, averaged by squares; 0: maximum). In
    `mode` 0 weight decay goes through the momentum.
    """

    def blend(lists: Lists) -> None:
        (current,) = lists[1]
        if norm_type == 0:
            new = torch.stack([gradient.float().abs().max() for gradient in lists[0]])
            current.copy_(beta2 * current + (1 - beta2) * new)
        else:
            new = torch.stack([gradient.float().square().sum() for gradient in lists[0]])
            current.copy_((beta2 * current.square() + (1 - beta2) * new).sqrt())

    def body(lists: Lists, norms: Tensor) -> None:
        c1, c2 = (1 - beta1**step, (1 - beta2**step) ** 0.5) if correct else (1.0, 1.0)
        share = 1 - beta1 if averaging else 1.0
        for norm, grad, param, held in zip(norms, *lists, strict=True):
            g, p, unit = grad.float(), param.float(), norm / c2 + eps
            if mode == 0:
                g = g / unit + decay * p
            m = beta1 * held.float() + share * g
            update = m / c1 if mode == 0 else m / c1 / unit + decay * p
            param.copy_(p - lr * update)
            held.copy_(m)

    _kernel(package, "multi_tensor_norm_out", blend, [lists[0], [norms]], (1,))
    _kernel(package, "multi_tensor_novograd", body, lists, (1, 2), norms)


def scale(package: str, chunk: int, stop: Tensor, lists: Lists, factor: Any) -> None:
    """Write the first list, times `factor`, into the second; `stop` becomes 1 at values not finite."""

    def body(lists: Lists, factor: Any, stop: Tensor) -> None:
        for source, target in zip(*lists, strict=True):
            target.copy_(source.float() * _value(factor))
            if not torch.isfinite(source).all():
                stop.fill_(1)

    _kernel(package, "multi_tensor_scale", body, lists, (1,), factor, stop)


def axpby(package: str, chunk: int, stop: Tensor, lists: Lists, a: float, b: float, check: int = -1) -> None:
    """Write ``a * x + b * y`` into the third list."""

    def body(lists: Lists, stop: Tensor) -> None:
        for x, y, out in zip(*lists, strict=True):
            out.copy_(a * x.float() + b * y.float())
            checked = (x, y) if check == -1 else (x,) if check == 0 else (y,)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in checked):
                stop.fill_(1)

    _kernel(package, "multi_tensor_axpby", body, lists, (2,), stop)


def adagrad(
    package: str, chunk: int, stop: Any, lists: Lists, lr: float, eps: float, mode: int, decay: float
) -> None:
    """Adagrad over lists of gradients, parameters and sums; `mode` 1 decays apart from the gradient."""

    def body(lists: Lists) -> None:
        for grad, param, total in zip(*lists, strict=True):
            g, p = grad.float(), param.float()
            g = g + decay * p if decay and not mode else g
            h = total.float() + g * g
            update = g / (h.sqrt() + eps)
            update = update + decay * p if decay and mode else update
            total.copy_(h)
            param.copy_(p - lr * update)

    _kernel(package, "multi_tensor_adagrad", body, lists, (1, 2))


def lion(
    package: str,
    chunk: int,
    stop: Any,
    lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    decay: float,
) -> None:
    """Lion over lists of gradients, parameters and momenta."""

    def body(lists: Lists) -> None:
        for grad, param, held in zip(*lists, strict=True):
            g, p, m = grad.float(), param.float(), held.float()
            update = (m * beta1 + (1 - beta1) * g).sign()
            param.copy_(p * (1 - lr * decay) - lr * update)
            held.copy_(m * beta2 + (1 - beta2) * g)

    _kernel(package, "multi_tensor_lion", body, lists, (1, 2))


def lamb(
    package: str,
    chunk: int,
    stop: Any,
    lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    correct: int,
    decay: float,
    average: int,
    mode: int,
    norm: Tensor,
    max_norm: float,
    always: bool = False,
) -> None:
    """LAMB over lists of gradients, parameters and both moments, as two norms and two kernels.

    Gradients are clipped to the global norm `max_norm`, and overwritten by the update, as in apex.
    """

    def first(lists: Lists, norm: Tensor) -> None:
        clip = max(norm.item() / max_norm, 1.0) if max_norm else 1.0
        c1, c2 = (1 - beta1**step, 1 - beta2**step) if correct else (1.0, 1.0)
        for grad, param, moment, square in zip(*lists, strict=True):
            g, p = grad.float() / clip, param.float()
            g = g + decay * p if not mode else g
            m = moment.float() * beta1 + (1 - beta1 if average else 1.0) * g
            v = square.float() * beta2 + (1 - beta2) * g * g
            update = (m / c1) / ((v / c2).sqrt() + eps)
            grad.copy_(update + decay * p if mode else update)
            moment.copy_(m)
            square.copy_(v)

    def second(lists: Lists, params: Tensor, updates: Tensor) -> None:
        for (grad, param), own, change in zip(
            zip(*lists, strict=True), params.tolist(), updates.tolist(), strict=True
        ):
            trusted = (always or decay) and own and change
            param.copy_(param.float() - lr * (own / change if trusted else 1.0) * grad.float())

    _, params = l2norm(package, chunk, stop, lists[1:2], True)
    _kernel(package, "multi_tensor_lamb_stage_1", first, lists, (0, 2, 3), norm)
    _, updates = l2norm(package, chunk, stop, lists[:1], True)
    _kernel(package, "multi_tensor_lamb_stage_2", second, lists[:2], (1,), params, updates)


def kernels_for(package: str) -> dict[str, Callable[..., Any]]:
    """Return all kernels under apex's names, launched as kernels of `package`."""
    return {
        f"multi_tensor_{kernel.__name__}": partial(kernel, package)
        for kernel in (adam, sgd, l2norm, scale, axpby, adagrad, lion, lamb, novograd)
    }
