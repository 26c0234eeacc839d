"""List the tensors inside modules and optimizers among the leaves of nested values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gapless.prove import tree


def open_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of `value` with their paths; for a module its tensors, for an optimizer its state."""
    for where, leaf in tree.leaves(value, path):
        if isinstance(leaf, nn.Module):
            for name, tensor in (*leaf.named_parameters(), *leaf.named_buffers()):
                yield f"{where}.{name}" if where else name, tensor
        elif isinstance(leaf, Optimizer):
            yield from _optimizer_state(leaf, where)
        else:
            yield where, leaf


def modules(value: Any, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules among the leaves of `value`."""
    for where, leaf in tree.leaves(value, path):
        if isinstance(leaf, nn.Module):
            yield where, leaf


def _optimizer_state(optimizer: Optimizer, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an optimizer's state, as in ``optimizer.state[0]['exp_avg']``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state_key in enumerate(parameters):
        kept = optimizer.state.get(state_key, {})  # indexing `state` would create an entry
        yield from tree.tensors(kept, f"{path}.state[{number}]")
