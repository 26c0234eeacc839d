"""What is to be compared, found and loaded: both sides, their inputs, and where they run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gapless.emulation.emulator import Emulator
from gapless.errors import GaplessError, UsageError
from gapless.prove.failure import failed, needs_gpu, one_line
from gapless.prove.inputs import Input, added_from, inputs_from
from gapless.prove.places import Place, gpu_of
from gapless.prove.subjects import Subject
from gapless.prove.targets import Loader
from gapless.prove.timing import Meter

Target = Callable[..., Any] | str


@dataclass(frozen=True)
class Wishes:
    """What to compare, and how: the arguments of `compare`."""

    original: Target
    fixed: Target
    inputs: Any
    cases: Any = None
    only: tuple[str, ...] = ()
    edge_cases: bool = True
    gradients_of: tuple[str, ...] = ()
    backward: bool = True
    rtol: float | None = None
    atol: float | None = None
    seconds: float = 5.0
    sweep: tuple[str, tuple[float | str, ...]] | None = None
    seed: int = 0
    gpu: str | None = None
    device: str | None = None
    output: str | os.PathLike[str] | None = None
    meter: Meter | None = None
    bounded: bool = False
    contract: Target | None = None


def sweep_of(given: dict[str, Sequence[float | str]] | None) -> tuple[str, tuple[float | str, ...]] | None:
    """The one keyword of a sweep, and its values.

    Raises:
        UsageError: there is not one keyword with two values or more.
    """
    if given is None:
        return None
    if len(given) != 1 or len(next(iter(given.values()))) < 2:
        raise UsageError("a sweep needs one keyword and at least two values: sweep={'density': [0.01, 0.1]}")
    ((key, values),) = given.items()
    return key, tuple(values)


class NeedsGpu(Exception):
    """Something asked for a GPU, and there is none: it is to be emulated from the beginning."""


class Setup:
    """Both sides, their inputs, and the `place` they run in; `emulator` is on where everything needs it.

    Raises:
        NeedsGpu: the user's code asks for a GPU, there is none, and `emulator` is None.
    """

    def __init__(self, wishes: Wishes, emulator: Emulator | None) -> None:
        self.wishes = wishes
        self.emulator = emulator
        self._loader = Loader(wishes.seed)
        with self.user_code("loading"):
            self.before = self._subject(wishes.original, "original")
            self.after = self._subject(wishes.fixed, "fixed")
            self._source = self._loaded(wishes.inputs)
            self._more = self._loaded(wishes.cases)
            self._contract = self._loaded(wishes.contract)
        if self._contract is not None and not callable(self._contract):
            raise UsageError(f"the contract is of type {type(self._contract).__name__} and cannot be called")
        self.given = self.inputs(**self._base())
        self.added = self._added()
        self.place = self._place()

    @property
    def can_emulate(self) -> bool:
        """Whether code that needs a GPU may still be given an emulated one."""
        return self.emulator is None and not torch.cuda.is_available()

    def user_code(self, what: str) -> _Watch:
        """A block in which the user's code runs; `what` names it where it raises."""
        return _Watch(what, self.can_emulate)

    def inputs(self, **keywords: Any) -> list[Input]:
        """The inputs, made with `keywords` where a function makes them."""
        wishes = self.wishes
        with self.user_code("the function that gives the inputs"):
            return inputs_from(self._source, self.before.target, wishes.seed, wishes.gradients_of, **keywords)

    @property
    def contract(self) -> Callable[[Input], bool] | None:
        """Whether the contract holds for an input; None where there is none."""
        contract = self._contract
        if contract is None:
            return None

        def holds(given: Input) -> bool:
            own = given.fresh()
            with self.user_code("the contract"):
                return bool(contract(*own.args, **own.kwargs))

        return holds

    def _added(self) -> list[Input]:
        if self._more is None:
            return []
        wishes = self.wishes
        with self.user_code("the function that gives the added cases"):
            return added_from(self._more, self.before.target, wishes.seed, wishes.gradients_of)

    def _loaded(self, source: Any) -> Any:
        return self._loader.value(source) if isinstance(source, str) else source

    def _subject(self, target: Target, role: str) -> Subject:
        if isinstance(target, str):
            return Subject(target, self._loader.callable(target))
        if not callable(target):
            raise UsageError(f"the {role} is of type {type(target).__name__} and cannot be called")
        name = getattr(target, "__qualname__", type(target).__qualname__).replace("<locals>.", "")
        return Subject(role if name.endswith("<lambda>") else name, target)

    def _base(self) -> dict[str, Any]:
        """The keyword of the sweep, where the inputs cannot do without it."""
        if self.wishes.sweep is None:
            return {}
        key, values = self.wishes.sweep
        if not callable(self._source):
            raise UsageError("a sweep needs inputs from a function that takes its keyword")
        parameters = inspect.signature(self._source).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if key not in parameters and not takes_all:
            known = ", ".join(parameters) or "none"
            raise UsageError(f"the inputs have no keyword {key!r} to sweep (their parameters: {known})")
        needed = key in parameters and parameters[key].default is inspect.Parameter.empty
        return {key: values[0]} if needed else {}

    def _place(self) -> Place:
        there = gpu_of(self.given[0])
        if self.emulator is not None:
            return Place(f"an emulated {self.emulator.gpu.name}", modules=there)
        wanted = self.wishes.device
        if wanted is None and there is not None:
            return Place(torch.cuda.get_device_name(there), modules=there, gpu=True)
        if wanted is None and not torch.cuda.is_available():
            return Place("CPU")
        try:
            device = torch.device(wanted or "cuda:0")
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UsageError(f"no device {wanted}: {one_line(error)}") from None
        gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if gpu else device.type.upper()
        return Place(name, device, device, gpu)


class _Watch:
    """What the user's code raises inside is told as `Failed`, or asks for a GPU that has to be emulated."""

    def __init__(self, what: str, can_emulate: bool) -> None:
        self._what = what
        self._can_emulate = can_emulate

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (GaplessError, KeyboardInterrupt, SystemExit, GeneratorExit)):
            return
        if self._can_emulate and needs_gpu(error):
            raise NeedsGpu from error
        raise failed(self._what, error) from None
