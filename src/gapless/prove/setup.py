"""Load both sides and their inputs, and choose where they run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gapless.emulation.emulator import Emulator
from gapless.errors import GaplessError, UsageError
from gapless.prove.failure import failure_of, needs_gpu, one_line
from gapless.prove.inputs import Input, added_from, inputs_from
from gapless.prove.options import CompareOptions
from gapless.prove.places import CallPlace, gpu_of
from gapless.prove.subjects import Subject
from gapless.prove.targets import Loader

Target = Callable[..., Any] | str


def parse_sweep(sweep: dict[str, Sequence[float | str]] | None) -> tuple[str, tuple[float | str, ...]] | None:
    """Return the one keyword of a sweep, and its values.

    Raises:
        UsageError: there is not exactly one keyword with at least two values.
    """
    if sweep is None:
        return None
    if len(sweep) != 1 or len(next(iter(sweep.values()))) < 2:
        raise UsageError("a sweep needs one keyword and at least two values: sweep={'density': [0.01, 0.1]}")
    ((key, values),) = sweep.items()
    return key, tuple(values)


class NeedsGpu(Exception):
    """The user's code needs a GPU and there is none: everything has to be emulated from the beginning."""


class Setup:
    """Both sides, their inputs, and the `place` where they run; `emulator` is set if everything needs it.

    Raises:
        NeedsGpu: the user's code needs a GPU, there is none, and `emulator` is None.
    """

    def __init__(
        self, original: Target, fixed: Target, options: CompareOptions, emulator: Emulator | None = None
    ) -> None:
        self.options = options
        self.emulator = emulator
        self._loader = Loader(options.seed)
        with self.user_code("loading"):
            self.before = self._subject(original, "original")
            self.after = self._subject(fixed, "fixed")
            self._source = self._load(options.inputs)
            self._added_source = self._load(options.cases)
            self._contract = self._load(options.contract)
        if self._contract is not None and not callable(self._contract):
            raise UsageError(f"the contract is of type {type(self._contract).__name__} and cannot be called")
        self.user_inputs = self.inputs(**self._sweep_default())
        self.added = self._added_inputs()
        self.place = self._place()

    @property
    def can_emulate(self) -> bool:
        """Whether an emulated GPU can still be offered to code that needs one."""
        return self.emulator is None and not torch.cuda.is_available()

    def user_code(self, action: str) -> _UserCodeGuard:
        """Return a context in which the user's code runs; `action` names it in errors."""
        return _UserCodeGuard(action, self.can_emulate)

    def inputs(self, **keywords: Any) -> list[Input]:
        """Return the inputs, made with `keywords` if a function makes them."""
        options = self.options
        with self.user_code("the function that gives the inputs"):
            return inputs_from(
                self._source, self.before.target, options.seed, options.gradients_of, **keywords
            )

    @property
    def contract(self) -> Callable[[Input], bool] | None:
        """Return a function that says whether the contract holds for an input; None without a contract."""
        contract = self._contract
        if contract is None:
            return None

        def holds(call_input: Input) -> bool:
            own = call_input.fresh()
            with self.user_code("the contract"):
                return bool(contract(*own.args, **own.kwargs))

        return holds

    def _added_inputs(self) -> list[Input]:
        if self._added_source is None:
            return []
        options = self.options
        with self.user_code("the function that gives the added cases"):
            return added_from(self._added_source, self.before.target, options.seed, options.gradients_of)

    def _load(self, source: Any) -> Any:
        return self._loader.value(source) if isinstance(source, str) else source

    def _subject(self, target: Target, role: str) -> Subject:
        if isinstance(target, str):
            return Subject(target, self._loader.callable(target))
        if not callable(target):
            raise UsageError(f"the {role} is of type {type(target).__name__} and cannot be called")
        name = getattr(target, "__qualname__", type(target).__qualname__).replace("<locals>.", "")
        return Subject(role if name.endswith("<lambda>") else name, target)

    def _sweep_default(self) -> dict[str, Any]:
        """Return the first value of the sweep, if the inputs need its keyword."""
        if self.options.sweep is None:
            return {}
        key, values = self.options.sweep
        if not callable(self._source):
            raise UsageError("a sweep needs inputs from a function that takes its keyword")
        parameters = inspect.signature(self._source).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if key not in parameters and not takes_all:
            available = ", ".join(parameters) or "none"
            raise UsageError(f"the inputs have no keyword {key!r} to sweep (their parameters: {available})")
        needed = key in parameters and parameters[key].default is inspect.Parameter.empty
        return {key: values[0]} if needed else {}

    def _place(self) -> CallPlace:
        device_of_inputs = gpu_of(self.user_inputs[0])
        if self.emulator is not None:
            return CallPlace(f"an emulated {self.emulator.gpu.name}", modules=device_of_inputs)
        wanted = self.options.device
        if wanted is None and device_of_inputs is not None:
            return CallPlace(torch.cuda.get_device_name(device_of_inputs), modules=device_of_inputs, gpu=True)
        if wanted is None and not torch.cuda.is_available():
            return CallPlace("CPU")
        try:
            device = torch.device(wanted or "cuda:0")
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UsageError(f"no device {wanted}: {one_line(error)}") from None
        gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if gpu else device.type.upper()
        return CallPlace(name, device, device, gpu)


class _UserCodeGuard:
    """Turns exceptions of the user's code into `UserCodeFailed`, or `NeedsGpu` if a GPU must be emulated."""

    def __init__(self, action: str, can_emulate: bool) -> None:
        self._what = action
        self._can_emulate = can_emulate

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (GaplessError, KeyboardInterrupt, SystemExit, GeneratorExit)):
            return
        if self._can_emulate and needs_gpu(error):
            raise NeedsGpu from error
        raise failure_of(self._what, error) from None
