"""What one call does to the device: waits and their lines, operators, memory, on the emulated one."""

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
from gapless.errors import UsageError
from gapless.model import Ending, Finding, Session
from gapless.model.proof import Cost
from gapless.prove.calls import seed_all, wanted, weights
from gapless.prove.failure import one_line
from gapless.prove.inputs import Input
from gapless.prove.places import gpu_of, moved
from gapless.prove.setup import Setup
from gapless.prove.subjects import Instance, Subject
from gapless.prove.tree import tensors
from gapless.torch_internals import DisableTorchFunction, TorchDispatchMode

STEADY = 4
"""Calls that are looked at after those that warm up."""

_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::_efficientzerotensor", "aten::_local_scalar_dense")


class Counted(NamedTuple):
    """What both sides cost on an emulated `gpu`; no costs where `notes` say why there are none."""

    costs: tuple[Cost, ...] = ()
    gpu: str = ""
    notes: tuple[str, ...] = ()


def both_costs(setup: Setup) -> Counted:
    """The costs of a call of both sides with the first of the given inputs."""
    with ExitStack() as stack:
        subjects = [setup.before, setup.after]
        given = setup.given[0]
        if setup.emulator is None and torch.cuda.is_available():
            # An emulated device cannot use what a real one holds.
            given = given.mapped(lambda path, tensor: moved(tensor, torch.device("cpu")))
            subjects = [_on_host(subject, stack) for subject in subjects]
        emulator = setup.emulator or stack.enter_context(Emulator(setup.wishes.gpu, programme=True))
        stack.enter_context(_eager())
        costs = []
        places = not _goes_to_the_gpu(emulator, subjects[0], given, setup.wishes.seed)
        for subject in subjects:
            try:
                costs.append(cost(emulator, subject, given, setup.wishes.seed, setup.wishes.backward, places))
            except UsageError:
                raise
            except Exception as error:
                why = f"on the emulated {emulator.gpu.name} {subject.name} raises {one_line(error)}"
                return Counted(notes=(f"syncs were not counted: {why}",))
        return Counted(tuple(costs), emulator.gpu.name)


def _eager() -> AbstractContextManager[object]:
    """A block in which what was compiled before runs eagerly, as what is compiled under emulation does."""
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return stance("force_eager") if stance is not None else nullcontext()


def _on_host(subject: Subject, stack: ExitStack) -> Subject:
    """`subject` with its modules on the host, for as long as `stack` lasts."""
    instance = stack.enter_context(subject.fresh())
    for module in instance.modules().values():
        module.to("cpu")
    return Subject(subject.name, instance.call)


def _goes_to_the_gpu(emulator: Emulator, subject: Subject, given: Input, seed: int) -> bool:
    """Whether `subject` puts on the device what it is given: then that is copied in each call."""
    if gpu_of(given) is not None:
        return True
    with subject.fresh() as instance, _Counting(emulator) as counting, suppress(Exception):
        own = given.fresh()
        seed_all(seed)
        instance.call(*own.args, **own.kwargs)
        return counting.operators > 0
    return False


def cost(
    emulator: Emulator, subject: Subject, given: Input, seed: int, backward: bool = True, places: bool = True
) -> Cost:
    """What calls of `subject` with `given` cost on the device of `emulator`, which is on.

    Parameters are on the device before the first call, and, where it `places` them, the inputs. Whatever else
    a call needs is where the user's code has it.

    Raises:
        Exception: whatever the call raises on the emulated device.
    """
    put = partial(_placed, emulator) if places else Input.fresh
    session = _session(emulator, subject, partial(put, given), seed, backward)
    counted = _counted(emulator, subject, partial(put, given), seed, backward)
    return cost_of(session, counted.operators, counted.peak)


def cost_of(session: Session, operators: int, peak: int) -> Cost:
    """The cost that `session` tells of, in which each step is a call."""
    found = report(session)
    return Cost(
        waits=found.steps.waits_per_step,
        first=sum(event.waits for event in session.events if event.tick == 0),
        operators=operators,
        peak=peak,
        findings=tuple(msgspec.structs.replace(one, sites=()) for one in found.findings if _recurs(one)),
        estimate=found.estimate.step if found.estimate and not found.estimate.refused else None,
    )


def _recurs(finding: Finding) -> bool:
    return finding.is_race or finding.frequency.when in ("every-step", "some-steps")


def _session(
    emulator: Emulator, subject: Subject, given: Callable[[], Input], seed: int, backward: bool
) -> Session:
    with subject.fresh() as instance:
        _place_modules(instance)
        inputs = [given() for _ in range(WARM_UP + STEADY)]
        emulator.record_afresh(None)
        for number, one in enumerate(inputs):
            _call(emulator, instance, one, seed + number, backward)
            emulator.recorder.mark("user", subject.name)
        return emulator.session(script=(subject.name,), ending=Ending())


def _call(emulator: Emulator, instance: Instance, own: Input, seed: int, backward: bool) -> None:
    """One call, and the gradients of what it gives."""
    seed_all(seed)
    trained = list(wanted(instance, own).values())
    output = instance.call(*own.args, **own.kwargs)
    for _, one in tensors(output, "output"):  # whoever called may read it
        emulator.core.races.returned(one, "whoever called")
    if not backward or not trained or any(one.grad is not None for one in trained):
        return
    ends = {path: one for path, one in tensors(output, "output") if one.requires_grad}
    if ends:
        cotangents = [_weight(emulator, path, one) for path, one in ends.items()]
        torch.autograd.grad(list(ends.values()), trained, cotangents, allow_unused=True)


def _weight(emulator: Emulator, path: str, output: torch.Tensor) -> torch.Tensor:
    """A cotangent that has always been where the output is: putting it there is no part of the call."""
    index = emulator.core.device_of(output)
    made = weights(path, output)
    return emulator.core.place(made, index) if index >= 0 else made


def _placed(emulator: Emulator, given: Input) -> Input:
    """A copy of `given` on the device, in which the copying is not seen."""
    own = given.fresh()
    for _, tensor in own.tensors():
        if emulator.core.device_of(tensor) < 0:
            emulator.core.place(tensor, 0)
    return own


def _place_modules(instance: Instance) -> None:
    for module in instance.modules().values():
        module.to("cuda")


# -- operators and memory --------------------------------------------------------------------------


class _Counting(TorchDispatchMode):
    """Counts operators that work on the device, and the most that is allocated there after one."""

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
            self.operators += launches(func)
            self.peak = max(self.peak, self._core.allocated(0) - self._began)
        return out

    def _on_device(self, values: Sequence[Any]) -> bool:
        return any(self._core.device_of(tensor) >= 0 for tensor in trees.tensors(values))


def launches(func: Any) -> bool:
    """Whether the operator does work on the device: it is no view and no mere allocation."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return True
    if schema.name.startswith(_ALLOCATES):
        return False
    return not any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)


def _counted(
    emulator: Emulator, subject: Subject, given: Callable[[], Input], seed: int, backward: bool
) -> _Counting:
    """Count in a second call: the first may make what is kept for later ones."""
    with subject.fresh() as instance:
        _place_modules(instance)
        first, second = given(), given()
        _call(emulator, instance, first, seed, backward)
        del first
        counting = _Counting(emulator)
        with counting:
            _call(emulator, instance, second, seed, backward)
    return counting
