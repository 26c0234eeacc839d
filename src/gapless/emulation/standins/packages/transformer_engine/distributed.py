"""``transformer_engine.pytorch.distributed``: checkpoints and states of random numbers; one process alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

_MODULE = "transformer_engine.pytorch.distributed"
_states: dict[str, Any] = {}
"""States of random numbers, by name, of whoever has registered one."""


@PACKAGE.provides(_MODULE)
def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint``; how activations would be split over processes does not matter here."""
    for name in ("distribute_saved_activations", "get_rng_state_tracker", "tp_group"):
        kwargs.pop(name, None)
    inner = (lambda *inner_args: function(*inner_args, **kwargs)) if kwargs else function
    return torch.utils.checkpoint.checkpoint(inner, *args, use_reentrant=use_reentrant)


@PACKAGE.provides(_MODULE)
@contextmanager
def activation_recompute_forward(*_: Any, **__: Any) -> Iterator[None]:
    """A forward pass that is, or repeats, one of a checkpoint: for fp8, which has no effect here."""
    yield


@PACKAGE.provides(_MODULE)
def is_fp8_activation_recompute_enabled() -> bool:
    """Whether fp8's scales are kept for repeating a forward pass: never."""
    return False


@PACKAGE.provides(_MODULE)
def in_fp8_activation_recompute_phase() -> bool:
    """Whether a forward pass is repeated with fp8: never."""
    return False


@PACKAGE.provides(_MODULE)
def get_all_rng_states() -> dict[str, Any]:
    """Return all registered random states."""
    return _states


@PACKAGE.provides(_MODULE)
class CudaRNGStatesTracker:
    """Named states of random numbers, one of which is used at a time."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, torch.Tensor]:
        """A copy of the states."""
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace the states."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Register the state that `seed` gives.

        Raises:
            ValueError: there is such a name or seed already.
        """
        if seed in self.seeds_ or name in self.states_:
            raise ValueError(f"the name {name!r} or the seed {seed} is registered already")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Use the state of that name for a while.

        Raises:
            KeyError: there is none.
        """
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)
