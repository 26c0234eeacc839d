"""A custom autograd function that keeps numbers, shapes and flags in its context."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale, mode):
        ctx.save_for_backward(x, weight)
        ctx.scale, ctx.mode, ctx.size = scale, mode, x.shape
        return x @ weight * scale

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad * ctx.scale
        gx = grad @ weight.t() if ctx.needs_input_grad[0] else None
        if ctx.mode == "clipped":
            grad = grad.clamp(-1, 1)
        return gx, x.reshape(ctx.size).t() @ grad, None, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x, scale, mode):
        return Scaled.apply(x, self.weight, scale, mode).relu().sum()


net = torch.compile(Net().to(device))
for scale, mode in ((1.0, "plain"), (2.0, "plain"), (2.0, "clipped"), (3.0, "clipped")):
    net(torch.randn(4, 8, device=device), scale, mode).backward()
