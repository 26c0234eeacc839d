"""Count the waits, operators and memory of one call on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from gapless import trees
from gapless.analyze import WARM_UP, report
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.errors import UsageError
from gapless.model import Ending, Finding, Session
from gapless.model.proof import CallCost
from gapless.prove.calls import host_cotangent, seed_all, tensors_to_differentiate
from gapless.prove.failure import one_line
from gapless.prove.inputs import Input
from gapless.prove.places import gpu_of, move_leaf
from gapless.prove.setup import Setup
from gapless.prove.subjects import Instance, Subject
from gapless.prove.tree import tensors
from gapless.torch_internals import DisableTorchFunction, TorchDispatchMode

STEADY_CALLS = 4
"""Calls that are recorded after the warm-up: enough for an optimizer's state to be warm."""

_ALLOCATING = ("aten::empty", "aten::new_empty", "aten::_efficientzerotensor", "aten::_local_scalar_dense")
"""Prefixes of operators that only allocate or only read."""


class EmulatedCosts(NamedTuple):
    """Costs of both sides on an emulated `gpu`; empty where `notes` say why they were not counted."""

    costs: tuple[CallCost, ...] = ()
    gpu: str = ""
    notes: tuple[str, ...] = ()


def count_costs(setup: Setup) -> EmulatedCosts:
    """Count the costs of one call of each side with the first of the user's inputs."""
    with ExitStack() as stack:
        subjects = [setup.before, setup.after]
        call_input = setup.user_inputs[0]
        if setup.emulator is None and torch.cuda.is_available():
            # An emulated device cannot use what a real one holds.
            call_input = call_input.map_tensors(lambda path, tensor: move_leaf(tensor, torch.device("cpu")))
            subjects = [_on_host(subject, stack) for subject in subjects]
        emulator = setup.emulator or stack.enter_context(
            Emulator(EmulatorOptions(setup.options.gpu, programme=True))
        )
        stack.enter_context(_run_eagerly())
        costs = []
        places = not _goes_to_the_gpu(emulator, subjects[0], call_input, setup.options.seed)
        for subject in subjects:
            try:
                costs.append(
                    measure_cost(
                        emulator, subject, call_input, setup.options.seed, setup.options.backward, places
                    )
                )
            except UsageError:
                raise
            except Exception as error:
                why = f"on the emulated {emulator.gpu.name} {subject.name} raises {one_line(error)}"
                return EmulatedCosts(notes=(f"syncs were not counted: {why}",))
        return EmulatedCosts(tuple(costs), emulator.gpu.name)


def _run_eagerly() -> AbstractContextManager[object]:
    """Return a context in which compiled functions run eagerly, as they do when compiled under emulation."""
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return stance("force_eager") if stance is not None else nullcontext()


def _on_host(subject: Subject, stack: ExitStack) -> Subject:
    """Return `subject` with its modules on the host for as long as `stack` is open."""
    instance = stack.enter_context(subject.fresh())
    for module in instance.modules().values():
        module.to("cpu")
    return Subject(subject.name, instance.call)


def _goes_to_the_gpu(emulator: Emulator, subject: Subject, call_input: Input, seed: int) -> bool:
    """Whether `subject` works on the device with host inputs: then each call copies its inputs there."""
    if gpu_of(call_input) is not None:
        return True
    with subject.fresh() as instance, _OperatorCounter(emulator) as counting, suppress(Exception):
        own = call_input.fresh()
        seed_all(seed)
        instance.call(*own.args, **own.kwargs)
        return counting.operators > 0
    return False


def measure_cost(
    emulator: Emulator,
    subject: Subject,
    call_input: Input,
    seed: int,
    backward: bool = True,
    places: bool = True,
) -> CallCost:
    """Return the cost of one call of `subject` with `call_input` on the device of `emulator`, which is
    active.

    Parameters are on the device before the first call, and, if `places`, so are the inputs. Everything else
    is where the user's code has it.

    Raises:
        Exception: whatever the call raises on the emulated device.
    """
    put = partial(_place_input, emulator) if places else Input.fresh
    session = _record_session(emulator, subject, partial(put, call_input), seed, backward)
    counted = _count_operators(emulator, subject, partial(put, call_input), seed, backward)
    return cost_from_session(session, counted.operators, counted.peak)


def cost_from_session(session: Session, operators: int, peak: int) -> CallCost:
    """Return the cost of one call, from a session in which each step is a call."""
    diagnosis = report(session)
    return CallCost(
        waits=diagnosis.steps.waits_per_step,
        first=sum(event.waits for event in session.events if event.tick == 0),
        operators=operators,
        peak=peak,
        findings=tuple(
            msgspec.structs.replace(finding, sites=())
            for finding in diagnosis.findings
            if _is_recurring(finding)
        ),
        estimate=diagnosis.estimate.step if diagnosis.estimate and not diagnosis.estimate.refused else None,
    )


def _is_recurring(finding: Finding) -> bool:
    return finding.is_race or finding.frequency.when in ("every-step", "some-steps")


def _record_session(
    emulator: Emulator, subject: Subject, make_input: Callable[[], Input], seed: int, backward: bool
) -> Session:
    with subject.fresh() as instance:
        _place_modules(instance)
        inputs = [make_input() for _ in range(WARM_UP + STEADY_CALLS)]
        emulator.record_afresh(None)
        for number, call_input in enumerate(inputs):
            _call(emulator, instance, call_input, seed + number, backward)
            emulator.recorder.mark("user", subject.name)
        return emulator.session(script=(subject.name,), ending=Ending())


def _call(emulator: Emulator, instance: Instance, own: Input, seed: int, backward: bool) -> None:
    """Run one call and its backward pass."""
    seed_all(seed)
    trained = list(tensors_to_differentiate(instance, own).values())
    output = instance.call(*own.args, **own.kwargs)
    for _, tensor in tensors(output, "output"):  # the caller may read it
        emulator.core.races.check_result(tensor, "whoever called")
    if not backward or not trained or any(tensor.grad is not None for tensor in trained):
        return
    ends = {path: tensor for path, tensor in tensors(output, "output") if tensor.requires_grad}
    if ends:
        cotangents = [_placed_cotangent(emulator, path, end) for path, end in ends.items()]
        torch.autograd.grad(list(ends.values()), trained, cotangents, allow_unused=True)


def _placed_cotangent(emulator: Emulator, path: str, output: torch.Tensor) -> torch.Tensor:
    """Return the cotangent on the device of the output, so that moving it is not counted as part of the
    call."""
    index = emulator.core.device_of(output)
    weight = host_cotangent(path, output)
    return emulator.core.place(weight, index) if index >= 0 else weight


def _place_input(emulator: Emulator, call_input: Input) -> Input:
    """Return a copy of `call_input` on the device, made without recording the copies."""
    own = call_input.fresh()
    for _, tensor in own.tensors():
        if emulator.core.device_of(tensor) < 0:
            emulator.core.place(tensor, 0)
    return own


def _place_modules(instance: Instance) -> None:
    for module in instance.modules().values():
        module.to("cuda")


# -- operators and memory --------------------------------------------------------------------------


class _OperatorCounter(TorchDispatchMode):
    """Counts operators that work on the device, and the peak of memory allocated there."""

    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self._core = emulator.core
        self._began = self._core.allocated(0)
        self.operators = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunction():  # it has been through the emulation's function mode already
            out = func(*args, **kwargs or {})
        if self._on_device((*args, *(kwargs or {}).values())) or self._on_device((out,)):
            self.operators += does_work(func)
            self.peak = max(self.peak, self._core.allocated(0) - self._began)
        return out

    def _on_device(self, values: Sequence[Any]) -> bool:
        return any(self._core.device_of(tensor) >= 0 for tensor in trees.tensors(values))


def does_work(func: Any) -> bool:
    """Whether the operator does work on the device, that is, neither makes a view nor only allocates."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return True
    if schema.name.startswith(_ALLOCATING):
        return False
    return not any(
        returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns
    )


def _count_operators(
    emulator: Emulator, subject: Subject, make_input: Callable[[], Input], seed: int, backward: bool
) -> _OperatorCounter:
    """Count the operators of a second call: the first may create what later ones reuse."""
    with subject.fresh() as instance:
        _place_modules(instance)
        first, second = make_input(), make_input()
        _call(emulator, instance, first, seed, backward)
        del first
        counting = _OperatorCounter(emulator)
        with counting:
            _call(emulator, instance, second, seed, backward)
    return counting
