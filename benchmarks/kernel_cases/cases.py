"""`Case`: a call of something that launches kernels, its inputs, and the same in plain torch."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

SIZES = {"B": 2, "T": 80, "H": 2, "K": 32, "V": 32, "D": 64, "M": 16, "N": 1, "X": 4, "C": 5}
MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "unit": lambda x: F.normalize(x, dim=-1),
    "gate": F.logsigmoid,
    "slow": lambda x: F.logsigmoid(x) / 16,
    "sig": torch.sigmoid,
    "pos": torch.nn.functional.softplus,
    "small": lambda x: x * 0.1,
    "soft": lambda x: x.softmax(-1),
    "log": lambda x: x.log_softmax(-1),
}


@dataclass
class Case:
    """`run` and `plain` take the inputs (by attribute) and give a tensor or several.

    `inputs` say the shape by letters of `SIZES` and how they are made: ``q=BTHK g=BTH/gate``, or numbers: ``80,77``. Those of `fixed`
    are made by a function and get no gradient. Without `plain` nothing is compared: `why` says why.
    `knobs` hold while the device runs: values for names in modules (``{"liger_kernel.ops.swiglu._should_tile": …}``), which
    choose kernels that a library takes for large shapes or other GPUs; `environment` holds variables.
    `refused` names a kernel that Triton's own compiler refuses, so that it runs on no GPU: then that is expected.
    """

    name: str
    run: Callable[[Any], Any]
    inputs: str = ""
    plain: Callable[[Any], Any] | None = None
    fixed: dict[str, Callable[[], Any]] = field(default_factory=dict)
    backward: bool = True
    dtype: torch.dtype = torch.float32
    tolerance: float = 2e-3
    why: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    refused: str = ""

    @contextmanager
    def turned(self) -> Iterator[None]:
        """With the case's knobs as it wants them."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, self.environment))
            for name, value in self.knobs.items():
                module, _, attribute = name.rpartition(".")
                stack.enter_context(mock.patch.object(importlib.import_module(module), attribute, value))
            yield

    def build_inputs(self) -> SimpleNamespace:
        """The inputs, on the host."""
        torch.manual_seed(0)
        namespace = SimpleNamespace()
        for word in self.inputs.split():
            name, _, rest = word.partition("=")
            letters, _, how = rest.partition("/")
            shape = [
                SIZES[dimension] if dimension.isalpha() else int(dimension)
                for dimension in re.findall(r"[A-Z]|\d+", letters)
            ]
            value = MAKERS[how](torch.randn(shape)).to(self.dtype)
            setattr(namespace, name, value.requires_grad_())
        for name, make in self.fixed.items():
            setattr(namespace, name, make())
        return namespace


def forms(
    name: str,
    inputs: str,
    plain: Callable[[Any], Any],
    runs: dict[str, Callable[[Any], Any]],
    forward_only: Collection[str] = (),
    **options: Any,
) -> list[Case]:
    """One computation in several forms (``{"chunk": …, "recurrent": …}``), each beside the same in plain torch."""
    return [
        Case(f"{name}, {form}", run, inputs, plain, backward=form not in forward_only, **options)
        for form, run in runs.items()
    ]


class Modules:
    """``Modules("fla.ops").gla.naive``: modules, imported when asked for."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, name: str) -> Any:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(f"{self._prefix}.{module}"), attribute)


def first(value: Any) -> Any:
    """The first of several results."""
    return value[0] if isinstance(value, (tuple, list)) else value


def changed(x: Any, /, **more: Any) -> SimpleNamespace:
    """The inputs `x` with `more` among them or in their place."""
    return SimpleNamespace(**{**vars(x), **more})


def heads(value: torch.Tensor) -> torch.Tensor:
    """``[B, T, H, …]`` to ``[B, H, T, …]`` and back."""
    return value.transpose(1, 2)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal softmax attention of ``[B, T, H, D]``."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    length = q.shape[1]
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
