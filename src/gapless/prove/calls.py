"""Run one call and record its output, its gradients and what it changed."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gapless.prove import tree
from gapless.prove.held import modules, open_leaves
from gapless.prove.inputs import Input
from gapless.prove.subjects import Instance


def seed_all(seed: int) -> None:
    """Seed every generator that user code is likely to draw from."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # without a device `torch.manual_seed` notes each call, with its stack, for when there is one
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Restore the state of all random generators at the end."""
    python = random.getstate()
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()), device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                sys.modules["numpy"].random.set_state(numpy)


@dataclass
class CallResult:
    """What one call did; `error` is what it raised, in forward or in backward.

    `inputs` and `state` are the values of its arguments and its object after it, `before` the state before
    it, and `changed` the paths of the arguments it changed. `gradients` are by the path of the argument or
    the name of the parameter, None without a gradient; `differentiated` are the tensors they are taken of.
    """

    output: Any = None
    inputs: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    error: BaseException | None = None
    changed: frozenset[str] = frozenset()
    before: dict[str, Any] = field(default_factory=dict)
    differentiated: dict[str, torch.Tensor] = field(default_factory=dict)

    def note_changes(self, call_input: Input) -> None:
        """Set `changed` to the paths of arguments that differ from `call_input`."""
        was = {
            path: leaf for name, value in call_input.arguments() for path, leaf in open_leaves(value, name)
        }
        self.changed = frozenset(
            path for path, now in self.inputs.items() if path not in was or not is_same_value(was[path], now)
        ) | frozenset(path for path in was if path not in self.inputs)

    def differentiable(self) -> dict[str, torch.Tensor]:
        """Return the outputs that gradients can flow from, by path."""
        return {
            path: tensor
            for path, tensor in tree.tensors(self.output, "output")
            if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        }

    def backward(self, paths: set[str]) -> None:
        """Compute the gradients of the outputs at `paths`, each weighted with fixed random values."""
        self.gradients = {name: tensor.grad for name, tensor in self.differentiated.items()}
        if any(grad is not None for grad in self.gradients.values()):
            return  # the call ran backward itself
        outputs = {path: tensor for path, tensor in self.differentiable().items() if path in paths}
        if not outputs or not self.differentiated:
            return
        cotangents = [cotangent(path, tensor) for path, tensor in outputs.items()]
        try:
            grads = torch.autograd.grad(
                list(outputs.values()), list(self.differentiated.values()), cotangents, allow_unused=True
            )
        except Exception as error:
            self.error = error
            return
        self.gradients = dict(zip(self.differentiated, grads, strict=True))


def run_forward(
    instance: Instance, call_input: Input, seed: int, kept: Mapping[int, Any] | None = None
) -> CallResult:
    """Call `instance` with a copy of `call_input`, all generators seeded; `kept` are copies made before."""
    own = call_input.fresh(kept or {})
    call = CallResult()
    call.differentiated = tensors_to_differentiate(instance, own)
    call.before = {name: _snapshot(value) for name, value in instance.state().items()}
    seed_all(seed)
    try:
        with torch.enable_grad():
            call.output = instance.call(*own.args, **own.kwargs)
    except Exception as error:
        call.error = error
    call.inputs = {
        path: _snapshot(leaf) for name, value in own.arguments() for path, leaf in open_leaves(value, name)
    }
    call.state = {name: _snapshot(value) for name, value in instance.state().items()}
    return call


def tensors_to_differentiate(instance: Instance, call_input: Input) -> dict[str, torch.Tensor]:
    """Return the tensors to take gradients of: arguments by path, then trained parameters by name."""
    wanted_tensors = {
        path: tensor for path, tensor in call_input.tensors() if tensor.requires_grad and tensor.is_leaf
    }
    of_modules = {
        f"{path}.{name}": parameter
        for argument, value in call_input.arguments()
        for path, module in modules(value, argument)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    for name, value in (*of_modules.items(), *instance.trained_tensors().items()):
        if not any(value is tensor for tensor in wanted_tensors.values()):
            wanted_tensors[name if name not in wanted_tensors else f"self.{name}"] = value
    return wanted_tensors


def is_same_value(first: Any, second: Any) -> bool:
    """Whether two leaves are equal to the last bit, NaN being equal to NaN."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.shape != second.shape or first.dtype != second.dtype or first.layout != second.layout:
            return False
        if first.layout is not torch.strided or first.is_quantized:
            return True
        same = first == second
        if first.is_floating_point() or first.is_complex():
            same = same | ((first != first) & (second != second))
        return bool(same.all())
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return False
    try:
        return first is second or _compares_by_identity(first) or bool(first == second)
    except Exception:  # an array, or an object with an unusual `__eq__`
        return True


def _compares_by_identity(value: Any) -> bool:
    equal: Any = type(value).__eq__
    return equal is object.__eq__


def _snapshot(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def cotangent(path: str, output: torch.Tensor) -> torch.Tensor:
    """Return random values between 0.5 and 1.5 of the shape of `output`, the same for the same path and
    shape."""
    return host_cotangent(path, output).to(output.device)


def host_cotangent(path: str, output: torch.Tensor) -> torch.Tensor:
    """Return the values of `cotangent` on the host."""
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    values = torch.rand(output.shape, generator=generator, dtype=torch.float64) + 0.5
    return values.to(dtype=output.dtype)
