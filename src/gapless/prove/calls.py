"""One call, run and taken apart: what it gave, its gradients, what it changed."""

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
from gapless.prove.held import modules, opened
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
def generators_kept() -> Iterator[None]:
    """Leave all generators as they were."""
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
class Call:
    """What a call did. `error` is what it raised, in forward or in backward.

    `inputs` and `state` are what its arguments and its object hold after it, `before` the state before it,
    and `changed` the arguments that it changed, by path. `gradients` are by the path of the argument or the
    name of the parameter; None where nothing came back.
    """

    output: Any = None
    inputs: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    error: BaseException | None = None
    changed: frozenset[str] = frozenset()
    before: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, torch.Tensor] = field(default_factory=dict)

    def note_changes(self, given: Input) -> None:
        """Note which of the arguments are no longer what was `given`."""
        was = {path: leaf for name, value in given.arguments() for path, leaf in opened(value, name)}
        self.changed = frozenset(
            path for path, now in self.inputs.items() if path not in was or not alike(was[path], now)
        ) | frozenset(path for path in was if path not in self.inputs)

    def differentiable(self) -> dict[str, torch.Tensor]:
        """The outputs that gradients can flow from, by path."""
        return {
            path: tensor
            for path, tensor in tree.tensors(self.output, "output")
            if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        }

    def backward(self, paths: set[str]) -> None:
        """Take the gradients of the outputs at `paths`, each weighted with random values of its own."""
        self.gradients = {name: one.grad for name, one in self.wanted.items()}
        if any(grad is not None for grad in self.gradients.values()):
            return  # the call has been backward itself
        outputs = {path: one for path, one in self.differentiable().items() if path in paths}
        if not outputs or not self.wanted:
            return
        cotangents = [cotangent(path, tensor) for path, tensor in outputs.items()]
        try:
            found = torch.autograd.grad(
                list(outputs.values()), list(self.wanted.values()), cotangents, allow_unused=True
            )
        except Exception as error:
            self.error = error
            return
        self.gradients = dict(zip(self.wanted, found, strict=True))


def forward(instance: Instance, given: Input, seed: int, kept: Mapping[int, Any] | None = None) -> Call:
    """Call `instance` with a copy of `given`, all generators seeded; `kept` are copies made before."""
    own = given.fresh(kept or {})
    call = Call()
    call.wanted = wanted(instance, own)
    call.before = {name: _kept(value) for name, value in instance.state().items()}
    seed_all(seed)
    try:
        with torch.enable_grad():
            call.output = instance.call(*own.args, **own.kwargs)
    except Exception as error:
        call.error = error
    call.inputs = {path: _kept(leaf) for name, value in own.arguments() for path, leaf in opened(value, name)}
    call.state = {name: _kept(value) for name, value in instance.state().items()}
    return call


def wanted(instance: Instance, given: Input) -> dict[str, torch.Tensor]:
    """What gradients are taken of: arguments by their path, then what modules and the object train."""
    found = {path: one for path, one in given.tensors() if one.requires_grad and one.is_leaf}
    of_modules = {
        f"{path}.{name}": parameter
        for argument, value in given.arguments()
        for path, module in modules(value, argument)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    for name, value in (*of_modules.items(), *instance.trained().items()):
        if not any(value is known for known in found.values()):
            found[name if name not in found else f"self.{name}"] = value
    return found


def alike(one: Any, other: Any) -> bool:
    """Whether two leaves hold the same, to the last bit; NaN is NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
            return False
        if one.layout is not torch.strided or one.is_quantized:
            return True
        same = one == other
        if one.is_floating_point() or one.is_complex():
            same = same | ((one != one) & (other != other))
        return bool(same.all())
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return False
    try:
        return one is other or _by_identity(one) or bool(one == other)
    except Exception:  # an array, or an object of the user's own mind
        return True


def _by_identity(value: Any) -> bool:
    equal: Any = type(value).__eq__
    return equal is object.__eq__


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def cotangent(path: str, output: torch.Tensor) -> torch.Tensor:
    """Random values between 0.5 and 1.5 of the shape of `output`, the same for the same path and shape."""
    return weights(path, output).to(output.device)


def weights(path: str, output: torch.Tensor) -> torch.Tensor:
    """The values of `cotangent`, on the host."""
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    made = torch.rand(output.shape, generator=generator, dtype=torch.float64) + 0.5
    return made.to(dtype=output.dtype)
