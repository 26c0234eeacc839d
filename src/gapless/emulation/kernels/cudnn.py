"""cuDNN's own operators, which scripts and exported programs may call by name."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.kernels import kernel

Tensor = torch.Tensor
_aten: Any = torch.ops.aten


@kernel("cudnn_convolution")
def _convolution(
    self: Tensor,
    weight: Tensor,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    return torch.convolution(
        self, weight, None, stride, padding, dilation, False, [0] * (self.dim() - 2), groups
    )


@kernel("cudnn_convolution_transpose")
def _convolution_transpose(
    self: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    return torch.convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)


@kernel("cudnn_convolution_relu")
def _convolution_relu(
    self: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    none = [0] * (self.dim() - 2)
    return torch.convolution(self, weight, bias, stride, padding, dilation, False, none, groups).relu()


@kernel("cudnn_convolution_add_relu")
def _convolution_add_relu(
    self: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: float | None,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    none = [0] * (self.dim() - 2)
    out = torch.convolution(self, weight, bias, stride, padding, dilation, False, none, groups)
    return (out + (1 if alpha is None else alpha) * z).relu()


@kernel("_conv_depthwise2d", "conv_depthwise3d")
def _depthwise(
    self: Tensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Tensor:
    none, channels = [0] * (self.dim() - 2), self.shape[1]
    return torch.convolution(self, weight, bias, stride, padding, dilation, False, none, channels)


@kernel("cudnn_batch_norm")
def _batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return an empty reserve: only the backward kernel reads it, and that needs none here."""
    out = torch.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )
    return (*out, input.new_empty(0, dtype=torch.uint8))


@kernel("cudnn_batch_norm_backward")
def _batch_norm_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
    reserveSpace: Tensor,  # noqa: N803 - the schema's
) -> Any:
    return _aten.native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon,
        [True, True, True],
    )  # fmt: skip


@kernel("cudnn_grid_sampler")
def _grid_sampler(self: Tensor, grid: Tensor) -> Tensor:
    """Sample bilinearly with zero padding and aligned corners, the only mode that cuDNN has."""
    return _aten.grid_sampler_2d(self, grid, 0, 0, True)


@kernel("cudnn_grid_sampler_backward")
def _grid_sampler_backward(self: Tensor, grid: Tensor, grad_output: Tensor) -> Any:
    return _aten.grid_sampler_2d_backward(grad_output, self, grid, 0, 0, True, [True, True])


@kernel("cudnn_affine_grid_generator")
def _affine_grid(theta: Tensor, N: int, C: int, H: int, W: int) -> Tensor:  # noqa: N803
    return _aten.affine_grid_generator(theta, [N, C, H, W], True)


@kernel("cudnn_affine_grid_generator_backward")
def _affine_grid_backward(grad: Tensor, N: int, C: int, H: int, W: int) -> Tensor:  # noqa: N803
    return _aten.affine_grid_generator_backward(grad, [N, C, H, W], True)


@kernel("_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor")
def _use_cudnn_ctc_loss(*_: Any) -> bool:
    """Always False: ATen's own CTC kernel handles every input."""
    return False


@kernel("_cudnn_ctc_loss", "_cudnn_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
    deterministic: bool,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """Return the losses and their gradient with respect to `log_probs`."""
    lengths = [
        lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        for lengths in (input_lengths, target_lengths)
    ]
    losses, alphas = _aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    gradient = _aten._ctc_loss_backward(
        torch.ones_like(losses), log_probs, targets, *lengths, losses, alphas, blank, zero_infinity
    )
    return losses, gradient
