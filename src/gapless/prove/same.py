"""Compare the results of two subjects on one input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from gapless.model.proof import CaseResult, Difference
from gapless.prove import tree
from gapless.prove.bounded import BoundedFitter
from gapless.prove.calls import CallResult, is_same_value, run_forward
from gapless.prove.cases import cast
from gapless.prove.conditions import ConditionRecorder
from gapless.prove.equality import ResultComparison
from gapless.prove.failure import one_line
from gapless.prove.inputs import Input
from gapless.prove.options import CompareOptions
from gapless.prove.places import CallPlace
from gapless.prove.subjects import Subject

_UNSUPPORTED_WORDS = "not implemented for"
"""Words in torch's error for types that an operator does not support."""


@dataclass
class ComparedCase:
    """The result of one case, and the calls of both sides; `error` is the original's.

    `notes` are worth a word but are no differences; `remarks` are notes to repeat even if only an edge case
    shows them.
    """

    result: CaseResult
    notes: list[str]
    remarks: list[str]
    error: BaseException | None
    calls: tuple[list[CallResult], list[CallResult]]

    @property
    def gradients(self) -> bool:
        """Whether there were gradients to compare."""
        return any(
            grad is not None for side in self.calls for call in side for grad in call.gradients.values()
        )

    @property
    def requires_gradients(self) -> bool:
        """Whether there was a tensor to take gradients of."""
        return any(call.differentiated for side in self.calls for call in side)

    @property
    def changes_inputs(self) -> tuple[bool, bool]:
        """Whether the first and the second side change their arguments in place."""
        return tuple(any(call.changed for call in side) for side in self.calls)  # type: ignore[return-value]


@dataclass
class CaseComparer:
    """Compares `before` and `after` on inputs, each time from their initial state.

    `contract`: for which inputs both must do the same.
    """

    before: Subject
    after: Subject
    place: CallPlace
    options: CompareOptions
    contract: Callable[[Input], bool] | None = None
    conditions: ConditionRecorder = field(default_factory=ConditionRecorder)

    def compare_case(self, call_input: Input) -> ComparedCase:
        """Compare one call with these arguments."""
        return self._compare(call_input.name, call_input, [call_input])

    def compare_sequence(self, name: str, inputs: Sequence[Input]) -> ComparedCase:
        """Compare several calls in a row, in which state kept between calls shows."""
        return self._compare(name, replace(inputs[0], made="edge"), list(inputs))

    def _compare(self, name: str, call_input: Input, inputs: list[Input]) -> ComparedCase:
        inputs = [self.place.place_input(call_input) for call_input in inputs]
        both = self._run(self.before, inputs), self._run(self.after, inputs)
        fitting = BoundedFitter(self.options.bounded)
        for old, new in zip(*both, strict=False):
            new.output = fitting.fit(old.output, new.output, "output")
        for old, new in zip(*both, strict=False):
            if self.options.backward and not (old.error or new.error):
                paths = set(old.differentiable()) & set(new.differentiable())
                old.backward(paths)
                new.backward(paths)
        _note_changes(both, inputs)
        error = next((call.error for call in both[0] if call.error), None)
        remarks: list[str] = []
        outcome, differences, why, notes = self._judge(both, call_input, inputs, remarks)
        if outcome == "differs" and (outside := self._reason_outside_contract(fitting, inputs)):
            outcome, why = "outside", outside
        result = CaseResult(
            name=name, outcome=outcome, made=call_input.made, differences=differences, why=why
        )
        return ComparedCase(result, notes, remarks, error, both)

    def _reason_outside_contract(self, fitting: BoundedFitter, inputs: Sequence[Input]) -> str:
        """Why the two need not do the same; "" where they must."""
        if fitting.short:
            return fitting.short[0]
        holds = self.contract is None or all(map(self.contract, inputs))
        return "" if holds else "the contract does not hold"

    def _run(self, subject: Subject, inputs: Sequence[Input]) -> list[CallResult]:
        calls: list[CallResult] = []
        kept: dict[int, Any] = {}
        copy.deepcopy(
            [call_input.objects() for call_input in inputs], kept
        )  # a model, an optimizer: the same object in each call
        with self.conditions.record(subject.target), subject.fresh() as instance:
            instance.cast(inputs[0].dtype)
            self.place.place_instance(instance)
            for number, call_input in enumerate(inputs):
                calls.append(run_forward(instance, call_input, self.options.seed + number, kept))
                if calls[-1].error:
                    break
        return calls

    def _judge(
        self,
        both: tuple[list[CallResult], list[CallResult]],
        call_input: Input,
        inputs: list[Input],
        remarks: list[str],
    ) -> tuple[Any, tuple[Difference, ...], str, list[str]]:
        errors = [next((call.error for call in side if call.error), None) for side in both]
        words = [one_line(error) if error else "" for error in errors]
        edge = call_input.made == "edge"
        if errors[0] and errors[1]:
            if type(errors[0]) is type(errors[1]):
                return "both raise", (), words[0], []
            if edge:
                return "dropped", (), words[0], []
        elif errors[0] and edge:
            return "dropped", (), words[0], []
        elif errors[1] and edge and _UNSUPPORTED_WORDS in words[1]:
            return "dropped", (), words[1], []
        if errors[0] or errors[1]:
            sides = [word or "a result" for word in words]
            return (
                "differs",
                (Difference(where="the call", kind="error", before=sides[0], after=sides[1]),),
                "",
                [],
            )
        comparison = ResultComparison(self.options.rtol, self.options.atol)
        lenient: list[str] = []
        for number, (old, new) in enumerate(zip(*both, strict=True)):
            comparison.call = number + 1 if len(inputs) > 1 else 0
            comparison.reference = self._reference(inputs, number, old)
            self._compare_calls(comparison, old, new, lenient if call_input.lenient else None)
        if lenient:
            remarks.append(f"with {call_input.name}, {lenient[0]}")
        if not comparison.differences:
            remarks += [
                f"in case `{call_input.name}`, {remark}" for remark in dict.fromkeys(comparison.remarks)
            ]
        notes = [*comparison.notes, *dict.fromkeys(comparison.remarks)]
        return "differs" if comparison.differences else "same", tuple(comparison.differences), "", notes

    def _compare_calls(
        self, comparison: ResultComparison, old: CallResult, new: CallResult, lenient: list[str] | None
    ) -> None:
        comparison.compare_values("output", old.output, new.output)
        self._compare_differentiability(comparison, old, new)
        if lenient is None:
            self._compare_gradients(comparison, old, new)
        else:
            own = ResultComparison(self.options.rtol, self.options.atol)
            self._compare_gradients(own, old, new)
            lenient += [
                f"{difference.where} is {difference.after} instead of {difference.before}"
                for difference in own.differences
            ]
        self._compare_inputs(comparison, old, new)
        self._compare_states(comparison, old, new)

    @staticmethod
    def _compare_differentiability(comparison: ResultComparison, old: CallResult, new: CallResult) -> None:
        """Report outputs through which gradients no longer flow; note those through which they now do."""
        if not (old.differentiated and new.differentiated):
            return
        was, now = old.differentiable(), new.differentiable()
        for path, tensor in dict(_tensors(new)).items():
            if path in was and path not in now and tensor.dtype == was[path].dtype and tensor.numel():
                comparison.differences.append(
                    Difference(
                        where=f"gradient through {path}",
                        kind="gradient",
                        call=comparison.call,
                        before="flows",
                        after="is cut off",
                    )
                )
        for path in now:
            if path not in was and path in dict(_tensors(old)):
                comparison.notes.append(f"gradients flow through {path}, which had none before")

    @staticmethod
    def _compare_gradients(comparison: ResultComparison, old: CallResult, new: CallResult) -> None:
        pairs = pair_by_name(old.gradients, new.gradients)
        if pairs is None:
            comparison.notes.append("the two train different parameters; their gradients are not compared")
            pairs = [(name, name) for name in old.gradients if name in new.gradients]
        for was, now in pairs:
            a, b = old.gradients[was], new.gradients[now]
            if a is None and b is None:
                continue
            if (a is None or b is None) and was not in old.inputs:
                side = "first" if b is None else "second"
                comparison.remarks.append(
                    f"only the {side} gives {was} a gradient: a zero gradient still takes a step with "
                    "momentum or weight decay; no gradient does not"
                )
            a = torch.zeros_like(b) if a is None else a  # type: ignore[arg-type]  # one of them is not None
            b = torch.zeros_like(a) if b is None else b
            comparison.compare_tensors(f"gradient of {was}", a, b)

    @staticmethod
    def _compare_inputs(comparison: ResultComparison, old: CallResult, new: CallResult) -> None:
        """Compare arguments after the calls; a change by the first side alone is noted unless it is its
        result."""
        for path, value in old.inputs.items():
            if path not in new.inputs:
                continue
            if path in old.changed and path not in new.changed and old.output is not None:
                comparison.notes.append(f"only the first modifies its input {path} in place")
                continue
            comparison.compare_values(f"input {path} after the call", value, new.inputs[path])

    @staticmethod
    def _compare_states(comparison: ResultComparison, old: CallResult, new: CallResult) -> None:
        """Compare state that both keep under one name and that was equal before the call."""
        for name, value in old.state.items():
            alike_before = (
                name in old.before
                and name in new.before
                and is_same_value(old.before[name], new.before[name])
            )
            if alike_before and name in new.state:
                comparison.compare_values(f"{name or 'the object'} after the call", value, new.state[name])

    def _reference(
        self, inputs: list[Input], number: int, old: CallResult
    ) -> Callable[[str], torch.Tensor | None]:
        """Return a lookup of the original's values in double precision, computed on first use."""

        @cache
        def exact_values() -> dict[str, Any]:
            calls = self._run(self.before, [cast(call_input, torch.float64) for call_input in inputs])
            if len(calls) <= number or calls[number].error:
                return {}
            call = calls[number]
            call.backward(set(old.differentiable()))
            values = dict(_tensors(call))
            values.update(
                {f"gradient of {name}": grad for name, grad in call.gradients.items() if grad is not None}
            )
            values.update({f"input {path} after the call": leaf for path, leaf in call.inputs.items()})
            values.update({f"{path} after the call": leaf for path, leaf in call.state.items()})
            return values

        def value(where: str) -> torch.Tensor | None:
            exact = exact_values().get(where)
            return exact if isinstance(exact, torch.Tensor) else None

        return value


def _tensors(call: CallResult) -> list[tuple[str, torch.Tensor]]:
    return list(tree.tensors(call.output, "output"))


def pair_by_name(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Pair gradients by name, or in order if the unmatched ones have the same shapes; else None."""
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


def _note_changes(both: tuple[list[CallResult], list[CallResult]], inputs: Sequence[Input]) -> None:
    for side in both:
        for call, call_input in zip(side, inputs, strict=False):
            call.note_changes(call_input)
