"""What modules and optimizers hold, as leaves beside those of nested values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gapless.prove import tree


def opened(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of `value`, each with its path; of a module its tensors, of an optimizer its state."""
    for where, leaf in tree.leaves(value, path):
        if isinstance(leaf, nn.Module):
            for name, tensor in (*leaf.named_parameters(), *leaf.named_buffers()):
                yield f"{where}.{name}" if where else name, tensor
        elif isinstance(leaf, Optimizer):
            yield from _state(leaf, where)
        else:
            yield where, leaf


def modules(value: Any, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules among the leaves of `value`."""
    for where, leaf in tree.leaves(value, path):
        if isinstance(leaf, nn.Module):
            yield where, leaf


def _state(optimizer: Optimizer, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """``optimizer.state[0]['exp_avg']``: parameters by their number, as in a state dict."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for number, parameter in enumerate(parameters):
        kept = optimizer.state.get(parameter, {})  # `state` makes an entry for whatever it is asked for
        yield from tree.tensors(kept, f"{path}.state[{number}]")
