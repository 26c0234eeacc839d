"""`compare`: run two callables side by side and return one `Proof`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gapless.emulation.emulator import Emulator, current
from gapless.emulation.options import EmulatorOptions
from gapless.errors import GaplessError, UsageError
from gapless.files.output import writing
from gapless.model.proof import CaseResult, Proof, Sweep, SweepRow, Timing
from gapless.prove.calls import keep_generators
from gapless.prove.cases import edge_cases, with_value
from gapless.prove.failure import failure_of, needs_gpu, one_line
from gapless.prove.inputs import HOW_TO_GIVE_INPUTS, Input
from gapless.prove.options import CompareOptions
from gapless.prove.recognise import RecognisedInput, batch_size, recognise_input
from gapless.prove.runs import TimedInput, measure_both
from gapless.prove.same import CaseComparer, ComparedCase
from gapless.prove.setup import NeedsGpu, Setup, Target, parse_sweep
from gapless.prove.sweep import make_sweep
from gapless.prove.timing import CpuMeter, GpuMeter, Meter
from gapless.prove.verdict import find_new_races, make_verdict
from gapless.prove.waits import EmulatedCosts, count_costs
from gapless.torch_internals import profiler_enabled


def compare(
    original: Target,
    fixed: Target,
    inputs: Any = None,
    *,
    cases: Any = None,
    only: str | Sequence[str] = (),
    edge_cases: bool = True,
    gradients_of: str | Sequence[str] = (),
    backward: bool = True,
    bounded: bool = False,
    contract: Target | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seconds: float = 5.0,
    sweep: dict[str, Sequence[float | str]] | None = None,
    seed: int = 0,
    gpu: str | None = None,
    device: str | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Proof:
    """Whether `fixed` computes what `original` does, on `inputs` and edge cases made from them, and how fast.

    `original` and `fixed` are callables (functions, modules, objects, bound methods) or name them
    (``"losses.py:fixed"``). `inputs` is what calls receive: a tensor, a tuple of arguments, a dict of
    keywords, a pair of both, a list or an iterable of these, or a callable that gives one of them. `cases`
    adds inputs by name; `only` names the cases to run, without measuring time; `edge_cases=False` makes none.

    Outputs are compared, gradients of inputs and parameters that require them (`gradients_of` has more of the
    inputs require them; `backward=False` takes none), changes of arguments and of state; with the tolerances
    of `torch.testing` by type unless `rtol` or `atol` are given. Each side starts from its state as it is now
    and from the same random numbers; neither the callables nor the generators are changed.

    Where `bounded`, tensors of `fixed` may have more rows than those of `original`, whose number is compared.
    `contract` receives the arguments of a call and says whether the two are to do the same; differences where
    they need not are marked apart.

    Waits, operators and memory are counted on an emulated `gpu`. Time is measured for about `seconds`
    (0: not at all), on the GPU if there is one, else on the CPU; `device` names another. `sweep` maps a
    keyword of the callable `inputs` to values for which time is measured, too. `output` names a file for the
    arguments of the first failing case, written by `torch.save`.

    Raises:
        UsageError: a target or the inputs are not there, or cannot be what they should be.
        GaplessError: the original, or the callable that gives the inputs, raised.
    """
    only, gradients_of = (
        (choice,) if isinstance(choice, str) else tuple(choice) for choice in (only, gradients_of)
    )
    options = CompareOptions(
        inputs, cases, only, edge_cases, gradients_of, backward, bounded, contract, rtol, atol, seconds,
        parse_sweep(sweep), seed, gpu, device, output,
    )  # fmt: skip
    return prove(original, fixed, options)


def prove(original: Target, fixed: Target, options: CompareOptions, meter: Meter | None = None) -> Proof:
    """Return the proof for these options; `meter` measures time (default: that of the device)."""
    if current() is not None:
        raise UsageError("compare emulates a device itself: call it outside gapless.emulate()")
    if options.inputs is None:
        raise UsageError(f"inputs are needed: --inputs losses.py:batches, or inputs=…: {HOW_TO_GIVE_INPUTS}")
    with keep_generators():
        try:
            return _ComparisonRun(Setup(original, fixed, options), meter).proof()
        except NeedsGpu:
            with Emulator(EmulatorOptions(options.gpu, programme=True)) as emulator:
                return _ComparisonRun(Setup(original, fixed, options, emulator), meter).proof()


class _ComparisonRun:
    """Runs both sides of a comparison; notes what happens on the way."""

    def __init__(self, setup: Setup, meter: Meter | None) -> None:
        self.setup = setup
        self.meter = meter or (GpuMeter() if setup.place.gpu else CpuMeter())
        self.options = setup.options
        self.notes: list[str] = []
        self.gradients = False
        self.requires_gradients = False
        self.copies = False
        self.wrong = False
        self.judge = CaseComparer(setup.before, setup.after, setup.place, setup.options, setup.contract)

    def proof(self) -> Proof:
        """Compare results, count costs, measure time."""
        setup, options = self.setup, self.options
        results = self._compare()
        emulated = EmulatedCosts() if options.only else count_costs(setup)
        self.notes += emulated.notes
        races = find_new_races(emulated.costs)
        self.notes += [note for race in races for note in race.evidence]
        time = None if options.only or races else self._time(results)
        sweep = self._sweep() if options.sweep and not options.only else None
        for subject in (setup.before, setup.after):
            self.notes += [
                f"{subject.name} holds a {part} that keeps its state between calls"
                for part in subject.uncopied
            ]
        return Proof(
            verdict=make_verdict(results, emulated.costs, time),
            same=all(result.outcome != "differs" for result in results) and not races,
            before=setup.before.name,
            after=setup.after.name,
            cases=tuple(results),
            device=setup.place.name,
            gpu=emulated.gpu,
            seed=options.seed,
            gradients=self.gradients,
            costs=emulated.costs,
            time=time,
            sweep=sweep,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    # -- equality ----------------------------------------------------------------------------------

    def _compare(self) -> list[CaseResult]:
        results = []
        unsaved = self.options.output
        for name, make in self._cases():
            inputs = make()
            call_input = inputs[0]
            compared = (
                self.judge.compare_case(call_input)
                if len(inputs) == 1
                else self.judge.compare_sequence(name, inputs)
            )
            self._take_notes_of(compared)
            results.append(compared.result)
            if unsaved is not None and compared.result.outcome == "differs":
                self._save(os.fspath(unsaved), call_input, compared)
                unsaved = None
        if not self.options.only:
            self.notes += self.judge.conditions.untested_conditions()
        if unsaved is not None:
            self.notes.append(f"no case fails, so nothing was written to {os.fspath(unsaved)}")
        if not (self.gradients or self.requires_gradients):
            self.notes.append(self._no_gradients())
        return results

    def _save(self, path: str, call_input: Input, compared: ComparedCase) -> None:
        """Save a failing case; if that fails it is only noted."""
        try:
            _write_case(path, call_input, compared)
        except GaplessError as error:
            self.notes.append(f"the failing case was not saved: {error}")

    def _cases(self) -> list[_Calls]:
        """Return the name of each case, and the function that makes the inputs of its call or calls."""
        setup, options = self.setup, self.options
        cases: list[_Calls] = [
            (call_input.name, partial(_one_call, call_input))
            for call_input in (*setup.user_inputs, *setup.added)
        ]
        if options.edge_cases or options.only:
            recognised = recognise_input(setup.user_inputs[0], setup.before.target)
            cases += [
                (name, partial(tuple[Input, ...], calls))
                for name, calls in call_sequences(setup.user_inputs, recognised)
            ]
            cases += [
                (name, partial(_make_call, make))
                for name, make in edge_cases(setup.user_inputs[0], recognised)
            ]
        if not options.only:
            return cases
        names = [name for name, _ in cases]
        for name in options.only:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                advice = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
                raise UsageError(f"there is no case {name!r} ({advice})")
        return [case for case in cases if case[0] in options.only]

    def _take_notes_of(self, compared: ComparedCase) -> None:
        """Collect the notes of a case; raise if the original cannot run the user's inputs."""
        result = compared.result
        if compared.error is not None and result.made == "given":
            if needs_gpu(compared.error) and self.setup.can_emulate:
                raise NeedsGpu
            place = self.setup.place
            put = (
                f" with its inputs on {place.inputs} (--device cpu: on the CPU)"
                if place.gpu and place.inputs
                else ""
            )
            raise failure_of(f"{self.setup.before.name} ({result.name}){put}", compared.error)
        self.gradients = self.gradients or compared.gradients
        self.requires_gradients = self.requires_gradients or (
            self.options.backward and compared.requires_gradients
        )
        self.copies = self.copies or (result.made == "given" and any(compared.changes_inputs))
        self.wrong = self.wrong or (result.made == "given" and result.outcome == "differs")
        if result.made != "edge":
            self.notes += compared.notes
        elif not self.wrong:  # differences on the user's inputs make remarks about edge cases redundant
            self.notes += compared.remarks

    def _no_gradients(self) -> str:
        if not self.options.backward:
            return "gradients were not compared"
        floating = [
            path for path, tensor in self.setup.user_inputs[0].tensors() if tensor.is_floating_point()
        ]
        advice = f": --grad {floating[0]} has it require them" if floating else ""
        return f"gradients were not compared, because no input requires them{advice}"

    # -- time --------------------------------------------------------------------------------------

    def _time(self, results: Sequence[CaseResult]) -> Timing | None:
        if self.options.seconds <= 0 or self.options.sweep is not None:
            return None
        if self.setup.emulator is not None:
            self.notes.append("time was not measured: the code needs a GPU, and there is none here")
            return None
        if any(result.outcome == "differs" and result.made == "given" for result in results):
            self.notes.append("time was not measured, because the two differ on the inputs as given")
            return None
        if profiler_enabled():
            self.notes.append("a profiler is running and affects the times: measure without it")
        return self._measure(self.setup.user_inputs[0])

    def _measure(self, call_input: Input) -> Timing:
        timed = TimedInput(
            call_input, self.options.seconds, self.options.seed, self.copies, self.options.backward
        )
        sides = (self.setup.before, self.setup.after)
        return measure_both(sides, timed, self.setup.place, self.meter)

    def _sweep(self) -> Sweep | None:
        assert self.options.sweep is not None
        if self.setup.emulator is not None or self.options.seconds <= 0:
            self.notes.append("the sweep was skipped: time cannot be measured here")
            return None
        key, values = self.options.sweep
        rows = []
        for value in values:
            call_input = replace(self.setup.inputs(**{key: value})[0], name=f"{key}={value}")
            compared = self.judge.compare_case(call_input)
            self._take_notes_of(compared)
            rows.append(
                SweepRow(value=value, same=compared.result.outcome == "same", time=self._measure(call_input))
            )
        return make_sweep(key, rows)


_Calls = tuple[str, Callable[[], Sequence[Input]]]


def _one_call(call_input: Input) -> Sequence[Input]:
    return (call_input,)


def _make_call(make: Callable[[], Input]) -> Sequence[Input]:
    return (make(),)


def _write_case(path: str, call_input: Input, compared: ComparedCase) -> None:
    """Write the arguments of a case and the outputs of both sides."""
    outputs = [side[0].output if side else None for side in compared.calls]
    content: dict[str, Any] = {
        "case": compared.result.name,
        "args": call_input.args,
        "kwargs": call_input.kwargs,
        "before": outputs[0],
        "after": outputs[1],
    }
    try:
        with writing(path) as out:
            torch.save(content, out)
    except GaplessError:
        raise
    except Exception as error:  # pickling the user's values may raise anything
        raise GaplessError(f"cannot write {path}: {one_line(error)}") from None


PLAIN_NAME = "calls in a row"
BAD_NAME = "a bad batch between good ones"
_MAX_USER_INPUTS = 3
"""The user's inputs at the start of a sequence: the state of optimizers is warm after two."""

CallSequence = tuple[str, tuple[Input, ...]]
"""The name of a sequence, and the inputs of its calls."""


def call_sequences(inputs: Sequence[Input], recognised: RecognisedInput) -> list[CallSequence]:
    """Return the sequences made of `inputs`, the first of which is `recognised`.

    In one all values are good: the user's inputs, the first with its batch reversed, and itself again. In the
    others a value is NaN in the third call, when an optimizer's state is warm, and good calls follow.
    """
    first, turned = inputs[0], _flip_batch(inputs[0])
    following = inputs[1] if len(inputs) > 1 else turned
    sequences = [(PLAIN_NAME, (*inputs[:_MAX_USER_INPUTS], turned, first))]
    for path in recognised.values:
        of = f" (NaN in {path})" if len(recognised.values) > 1 else ""
        bad = with_value(first, recognised, path, float("nan"), counts=True)
        good = [replace(call_input, lenient=True) for call_input in (first, following, turned, first)]
        sequences.append((f"{BAD_NAME}{of}", (*good[:2], bad, *good[2:])))
    return sequences


def _flip_batch(first: Input) -> Input:
    """Return `first` with its batch reversed."""
    size = batch_size(first)

    def visit(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size or tensor.layout is not torch.strided:
            return tensor
        return tensor.detach().flip(0).requires_grad_(tensor.requires_grad)

    return first.map_tensors(visit)
