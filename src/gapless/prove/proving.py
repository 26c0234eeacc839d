"""`compare`: two callables, side by side, to one `Proof`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gapless.emulation.emulator import Emulator, current
from gapless.errors import GaplessError, UsageError
from gapless.files.output import writing
from gapless.model.proof import CaseResult, Proof, Sweep, SweepRow, Timing
from gapless.prove.calls import generators_kept
from gapless.prove.cases import edge_cases
from gapless.prove.failure import failed, needs_gpu, one_line
from gapless.prove.inputs import HOW, Input
from gapless.prove.recognise import recognised
from gapless.prove.rows import rows
from gapless.prove.runs import measured
from gapless.prove.same import Compared, Judge
from gapless.prove.setup import NeedsGpu, Setup, Target, Wishes, sweep_of
from gapless.prove.sweep import swept
from gapless.prove.timing import CpuMeter, GpuMeter
from gapless.prove.verdict import new_races, verdict
from gapless.prove.waits import Counted, both_costs
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
    only, gradients_of = ((one,) if isinstance(one, str) else tuple(one) for one in (only, gradients_of))
    wishes = Wishes(
        original, fixed, inputs, cases, only, edge_cases, gradients_of, backward, rtol, atol, seconds,
        sweep_of(sweep), seed, gpu, device, output, bounded=bounded, contract=contract,
    )  # fmt: skip
    return prove(wishes)


def prove(wishes: Wishes) -> Proof:
    """The proof that `wishes` asks for."""
    if current() is not None:
        raise UsageError("compare emulates a device itself: call it outside gapless.emulate()")
    if wishes.inputs is None:
        raise UsageError(f"inputs are needed: --inputs losses.py:batches, or inputs=…: {HOW}")
    with generators_kept():
        try:
            return _Proving(Setup(wishes, None)).proof()
        except NeedsGpu:
            with Emulator(wishes.gpu, programme=True) as emulator:
                return _Proving(Setup(wishes, emulator)).proof()


class _Proving:
    """One proof under way."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.wishes = setup.wishes
        self.notes: list[str] = []
        self.gradients = False
        self.asked = False
        self.copies = False
        self.wrong = False
        wishes = setup.wishes
        self.judge = Judge(
            setup.before,
            setup.after,
            setup.place,
            wishes.seed,
            wishes.rtol,
            wishes.atol,
            wishes.backward,
            wishes.bounded,
            setup.contract,
        )

    def proof(self) -> Proof:
        """Compare, count, measure."""
        setup, wishes = self.setup, self.wishes
        results = self._compare()
        counted = Counted() if wishes.only else both_costs(setup)
        self.notes += counted.notes
        races = new_races(counted.costs)
        self.notes += [note for one in races for note in one.evidence]
        time = None if wishes.only or races else self._time(results)
        sweep = self._sweep() if wishes.sweep and not wishes.only else None
        for subject in (setup.before, setup.after):
            self.notes += [
                f"{subject.name} holds a {one} that keeps its state between calls" for one in subject.kept
            ]
        return Proof(
            verdict=verdict(results, counted.costs, time),
            same=all(one.outcome != "differs" for one in results) and not races,
            before=setup.before.name,
            after=setup.after.name,
            cases=tuple(results),
            device=setup.place.name,
            gpu=counted.gpu,
            seed=wishes.seed,
            gradients=self.gradients,
            costs=counted.costs,
            time=time,
            sweep=sweep,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    # -- equality ----------------------------------------------------------------------------------

    def _compare(self) -> list[CaseResult]:
        results = []
        unsaved = self.wishes.output
        for name, make in self._cases():
            inputs = make()
            given = inputs[0]
            made = self.judge.case(given) if len(inputs) == 1 else self.judge.row(name, inputs)
            self._heed(made)
            results.append(made.result)
            if unsaved is not None and made.result.outcome == "differs":
                self._save(os.fspath(unsaved), given, made)
                unsaved = None
        if not self.wishes.only:
            self.notes += self.judge.conditions.untested()
        if unsaved is not None:
            self.notes.append(f"no case fails, so nothing was written to {os.fspath(unsaved)}")
        if not (self.gradients or self.asked):
            self.notes.append(self._no_gradients())
        return results

    def _save(self, path: str, given: Input, made: Compared) -> None:
        """Save a failing case; the comparison does not fail with it."""
        try:
            _save(path, given, made)
        except GaplessError as error:
            self.notes.append(f"the failing case was not saved: {error}")

    def _cases(self) -> list[_Calls]:
        """The names of all cases, and what makes the inputs of one call or of several in a row."""
        setup, wishes = self.setup, self.wishes
        found: list[_Calls] = [(one.name, partial(_alone, one)) for one in (*setup.given, *setup.added)]
        if wishes.edge_cases or wishes.only:
            known = recognised(setup.given[0], setup.before.target)
            found += [(name, partial(tuple[Input, ...], calls)) for name, calls in rows(setup.given, known)]
            found += [(name, partial(_made, make)) for name, make in edge_cases(setup.given[0], known)]
        if not wishes.only:
            return found
        names = [name for name, _ in found]
        for name in wishes.only:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                advice = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
                raise UsageError(f"there is no case {name!r} ({advice})")
        return [one for one in found if one[0] in wishes.only]

    def _heed(self, made: Compared) -> None:
        """Take what a case tells beside its result; refuse given inputs that the original cannot do."""
        result = made.result
        if made.error is not None and result.made == "given":
            if needs_gpu(made.error) and self.setup.can_emulate:
                raise NeedsGpu
            place = self.setup.place
            put = (
                f" with its inputs on {place.inputs} (--device cpu: on the CPU)"
                if place.gpu and place.inputs
                else ""
            )
            raise failed(f"{self.setup.before.name} ({result.name}){put}", made.error)
        self.gradients = self.gradients or made.gradients
        self.asked = self.asked or (self.wishes.backward and made.asked)
        self.copies = self.copies or (result.made == "given" and any(made.changes_inputs))
        self.wrong = self.wrong or (result.made == "given" and result.outcome == "differs")
        if result.made != "edge":
            self.notes += made.notes
        elif not self.wrong:  # what holds for the given inputs is no news of an edge case
            self.notes += made.remarks

    def _no_gradients(self) -> str:
        if not self.wishes.backward:
            return "gradients were not compared"
        floating = [path for path, one in self.setup.given[0].tensors() if one.is_floating_point()]
        advice = f": --grad {floating[0]} has it require them" if floating else ""
        return f"gradients were not compared, because no input requires them{advice}"

    # -- time --------------------------------------------------------------------------------------

    def _time(self, results: Sequence[CaseResult]) -> Timing | None:
        if self.wishes.seconds <= 0 or self.wishes.sweep is not None:
            return None
        if self.setup.emulator is not None:
            self.notes.append("time was not measured: the code needs a GPU, and there is none here")
            return None
        if any(one.outcome == "differs" and one.made == "given" for one in results):
            self.notes.append("time was not measured, because the two differ on the inputs as given")
            return None
        if profiler_enabled():
            self.notes.append("a profiler is running and affects the times: measure without it")
        return self._measured(self.setup.given[0])

    def _measured(self, given: Input) -> Timing:
        setup, wishes = self.setup, self.wishes
        return measured(
            (setup.before, setup.after),
            given,
            setup.place,
            wishes.meter or (GpuMeter() if setup.place.gpu else CpuMeter()),
            wishes.seconds,
            seed=wishes.seed,
            copies=self.copies,
            backward=wishes.backward,
        )

    def _sweep(self) -> Sweep | None:
        assert self.wishes.sweep is not None
        if self.setup.emulator is not None or self.wishes.seconds <= 0:
            self.notes.append("the sweep was skipped: time cannot be measured here")
            return None
        key, values = self.wishes.sweep
        rows = []
        for value in values:
            given = replace(self.setup.inputs(**{key: value})[0], name=f"{key}={value}")
            made = self.judge.case(given)
            self._heed(made)
            rows.append(SweepRow(value=value, same=made.result.outcome == "same", time=self._measured(given)))
        return swept(key, rows)


_Calls = tuple[str, Callable[[], Sequence[Input]]]


def _alone(given: Input) -> Sequence[Input]:
    return (given,)


def _made(make: Callable[[], Input]) -> Sequence[Input]:
    return (make(),)


def _save(path: str, given: Input, made: Compared) -> None:
    """Write the arguments of a case and what both sides made of them."""
    outputs = [side[0].output if side else None for side in made.calls]
    content: dict[str, Any] = {
        "case": made.result.name,
        "args": given.args,
        "kwargs": given.kwargs,
        "before": outputs[0],
        "after": outputs[1],
    }
    try:
        with writing(path) as out:
            torch.save(content, out)
    except GaplessError:
        raise
    except Exception as error:  # whatever a value of the user's raises when it is pickled
        raise GaplessError(f"cannot write {path}: {one_line(error)}") from None
