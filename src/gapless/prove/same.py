"""Whether two subjects make the same of an input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from gapless.model.proof import CaseResult, Difference
from gapless.prove import tree
from gapless.prove.bounded import Fitting
from gapless.prove.calls import Call, alike, forward
from gapless.prove.cases import cast
from gapless.prove.conditions import Conditions
from gapless.prove.equality import Comparing
from gapless.prove.failure import one_line
from gapless.prove.inputs import Input
from gapless.prove.places import Place
from gapless.prove.subjects import Subject

_UNSUPPORTED = "not implemented for"


@dataclass
class Compared:
    """The result of one case, and both sides' calls. `error` is the original's.

    `notes` are no differences but worth a word; `remarks` are those that only an edge case can tell.
    """

    result: CaseResult
    notes: list[str]
    remarks: list[str]
    error: BaseException | None
    calls: tuple[list[Call], list[Call]]

    @property
    def gradients(self) -> bool:
        """Whether there were gradients to compare."""
        return any(
            grad is not None for side in self.calls for call in side for grad in call.gradients.values()
        )

    @property
    def asked(self) -> bool:
        """Whether there was anything to take gradients of."""
        return any(call.wanted for side in self.calls for call in side)

    @property
    def changes_inputs(self) -> tuple[bool, bool]:
        """Whether the first and the second change their arguments in place."""
        return tuple(any(call.changed for call in side) for side in self.calls)  # type: ignore[return-value]


@dataclass
class Judge:
    """Compares `before` and `after` on inputs, each time from their state as it was at the beginning.

    `bounded` says that tensors of `after` may have more rows, `contract` for which inputs the two are to do
    the same.
    """

    before: Subject
    after: Subject
    place: Place
    seed: int = 0
    rtol: float | None = None
    atol: float | None = None
    backward: bool = True
    bounded: bool = False
    contract: Callable[[Input], bool] | None = None
    conditions: Conditions = field(default_factory=Conditions)

    def case(self, given: Input) -> Compared:
        """Compare one call with the arguments `given`."""
        return self._compared(given.name, given, [given])

    def row(self, name: str, inputs: Sequence[Input]) -> Compared:
        """Compare several calls in a row, in which state that is kept from one to the next shows."""
        return self._compared(name, replace(inputs[0], made="edge"), list(inputs))

    def _compared(self, name: str, given: Input, inputs: list[Input]) -> Compared:
        inputs = [self.place.input(one) for one in inputs]
        both = self._run(self.before, inputs), self._run(self.after, inputs)
        fitting = Fitting(self.bounded)
        for old, new in zip(*both, strict=False):
            new.output = fitting.fitted(old.output, new.output, "output")
        for old, new in zip(*both, strict=False):
            if self.backward and not (old.error or new.error):
                paths = set(old.differentiable()) & set(new.differentiable())
                old.backward(paths)
                new.backward(paths)
        _note_changes(both, inputs)
        error = next((call.error for call in both[0] if call.error), None)
        remarks: list[str] = []
        outcome, differences, why, notes = self._judge(both, given, inputs, remarks)
        if outcome == "differs" and (outside := self._outside(fitting, inputs)):
            outcome, why = "outside", outside
        result = CaseResult(name=name, outcome=outcome, made=given.made, differences=differences, why=why)
        return Compared(result, notes, remarks, error, both)

    def _outside(self, fitting: Fitting, inputs: Sequence[Input]) -> str:
        """Why the two need not do the same; "" where they have to."""
        if fitting.short:
            return fitting.short[0]
        holds = self.contract is None or all(map(self.contract, inputs))
        return "" if holds else "the contract does not hold"

    def _run(self, subject: Subject, inputs: Sequence[Input]) -> list[Call]:
        calls: list[Call] = []
        kept: dict[int, Any] = {}
        copy.deepcopy([one.objects() for one in inputs], kept)  # a model, an optimizer: the same in each call
        with self.conditions.watched(subject.target), subject.fresh() as instance:
            instance.cast(inputs[0].dtype)
            self.place.instance(instance)
            for number, one in enumerate(inputs):
                calls.append(forward(instance, one, self.seed + number, kept))
                if calls[-1].error:
                    break
        return calls

    def _judge(
        self, both: tuple[list[Call], list[Call]], given: Input, inputs: list[Input], remarks: list[str]
    ) -> tuple[Any, tuple[Difference, ...], str, list[str]]:
        errors = [next((call.error for call in side if call.error), None) for side in both]
        words = [one_line(error) if error else "" for error in errors]
        edge = given.made == "edge"
        if errors[0] and errors[1]:
            if type(errors[0]) is type(errors[1]):
                return "both raise", (), words[0], []
            if edge:
                return "dropped", (), words[0], []
        elif errors[0] and edge:
            return "dropped", (), words[0], []
        elif errors[1] and edge and _UNSUPPORTED in words[1]:
            return "dropped", (), words[1], []
        if errors[0] or errors[1]:
            sides = [word or "a result" for word in words]
            return (
                "differs",
                (Difference(where="the call", kind="error", before=sides[0], after=sides[1]),),
                "",
                [],
            )
        made = Comparing(self.rtol, self.atol)
        lenient: list[str] = []
        for number, (old, new) in enumerate(zip(*both, strict=True)):
            made.call = number + 1 if len(inputs) > 1 else 0
            made.reference = self._reference(inputs, number, old)
            self._call(made, old, new, lenient if given.lenient else None)
        if lenient:
            remarks.append(f"with {given.name}, {lenient[0]}")
        if not made.differences:
            remarks += [f"in case `{given.name}`, {one}" for one in dict.fromkeys(made.remarks)]
        notes = [*made.notes, *dict.fromkeys(made.remarks)]
        return "differs" if made.differences else "same", tuple(made.differences), "", notes

    def _call(self, made: Comparing, old: Call, new: Call, lenient: list[str] | None) -> None:
        made.values("output", old.output, new.output)
        self._attached(made, old, new)
        if lenient is None:
            self._gradients(made, old, new)
        else:
            own = Comparing(self.rtol, self.atol)
            self._gradients(own, old, new)
            lenient += [f"{one.where} is {one.after} instead of {one.before}" for one in own.differences]
        self._inputs(made, old, new)
        self._state(made, old, new)

    @staticmethod
    def _attached(made: Comparing, old: Call, new: Call) -> None:
        """An output that gradients flowed from and do no more is a difference; the reverse is told."""
        if not (old.wanted and new.wanted):
            return
        was, now = old.differentiable(), new.differentiable()
        for path, tensor in dict(_tensors(new)).items():
            if path in was and path not in now and tensor.dtype == was[path].dtype and tensor.numel():
                made.differences.append(
                    Difference(
                        where=f"gradient through {path}",
                        kind="gradient",
                        call=made.call,
                        before="flows",
                        after="is cut off",
                    )
                )
        for path in now:
            if path not in was and path in dict(_tensors(old)):
                made.notes.append(f"gradients flow through {path}, which had none before")

    @staticmethod
    def _gradients(made: Comparing, old: Call, new: Call) -> None:
        pairs = _paired(old.gradients, new.gradients)
        if pairs is None:
            made.notes.append("the two train different parameters; their gradients are not compared")
            pairs = [(name, name) for name in old.gradients if name in new.gradients]
        for was, now in pairs:
            a, b = old.gradients[was], new.gradients[now]
            if a is None and b is None:
                continue
            if (a is None or b is None) and was not in old.inputs:
                side = "first" if b is None else "second"
                made.remarks.append(
                    f"only the {side} gives {was} a gradient: a zero gradient still takes a step with "
                    "momentum or weight decay; no gradient does not"
                )
            a = torch.zeros_like(b) if a is None else a  # type: ignore[arg-type]  # one of them is there
            b = torch.zeros_like(a) if b is None else b
            made.tensors(f"gradient of {was}", a, b)

    @staticmethod
    def _inputs(made: Comparing, old: Call, new: Call) -> None:
        """What the calls did to their arguments. What only the first did is told, unless it is its result."""
        for path, value in old.inputs.items():
            if path not in new.inputs:
                continue
            if path in old.changed and path not in new.changed and old.output is not None:
                made.notes.append(f"only the first modifies its input {path} in place")
                continue
            made.values(f"input {path} after the call", value, new.inputs[path])

    @staticmethod
    def _state(made: Comparing, old: Call, new: Call) -> None:
        """What both keep under the same name, where it was the same before the call."""
        for name, value in old.state.items():
            alike_before = (
                name in old.before and name in new.before and alike(old.before[name], new.before[name])
            )
            if alike_before and name in new.state:
                made.values(f"{name or 'the object'} after the call", value, new.state[name])

    def _reference(self, inputs: list[Input], number: int, old: Call) -> Callable[[str], torch.Tensor | None]:
        """Values of the original in double precision, computed when first asked for."""

        @cache
        def known() -> dict[str, Any]:
            calls = self._run(self.before, [cast(one, torch.float64) for one in inputs])
            if len(calls) <= number or calls[number].error:
                return {}
            call = calls[number]
            call.backward(set(old.differentiable()))
            found = dict(_tensors(call))
            found.update(
                {f"gradient of {name}": one for name, one in call.gradients.items() if one is not None}
            )
            found.update({f"input {path} after the call": one for path, one in call.inputs.items()})
            found.update({f"{path} after the call": one for path, one in call.state.items()})
            return found

        def value(where: str) -> torch.Tensor | None:
            found = known().get(where)
            return found if isinstance(found, torch.Tensor) else None

        return value


def _tensors(call: Call) -> list[tuple[str, torch.Tensor]]:
    return list(tree.tensors(call.output, "output"))


def _paired(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Names of gradients that belong together: of one name, or as many of the same shapes in order."""
    if set(old) == set(new):
        return [(name, name) for name in old]
    only = [name for name in old if name not in new], [name for name in new if name not in old]
    shapes = [
        [getattr(side[name], "shape", None) for name in names]
        for side, names in zip((old, new), only, strict=True)
    ]
    if len(only[0]) == len(only[1]) and shapes[0] == shapes[1]:
        return [(name, name) for name in old if name in new] + list(zip(*only, strict=True))
    return None


def _note_changes(both: tuple[list[Call], list[Call]], inputs: Sequence[Input]) -> None:
    for side in both:
        for call, given in zip(side, inputs, strict=False):
            call.note_changes(given)
