"""The first thing in which two runs differ: a state after a step, a printed line, a file, or the ending."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from gapless.fixes.proof.printed_text import LineDifference, first_difference
from gapless.fixes.proof.run_record import RunRecord, StepRecord, TensorRecord
from gapless.fixes.proof.runner import Run
from gapless.model import Ending
from gapless.model.fix import ParametersMatch
from gapless.model.wording import count

_STREAMS = ("standard output", "standard error")


@dataclass(frozen=True)
class RunDifference:
    """A difference in words, after so many `steps` of the optimizers."""

    steps: int
    text: str


@dataclass
class RunComparison:
    """Compares two runs; numbers may differ by the share `rounding` of a tensor's largest element.

    `rounded` says that some did.
    """

    before: Run
    after: Run
    rounding: float = 0.0
    rounded: bool = False

    def first_difference(self) -> RunDifference | None:
        """Return the first difference in order of time; None if the runs are the same."""
        state = self.state_difference()
        candidates = [*self.ending_differences(), *([state] if state is not None else [])]
        candidates += self.printed_differences()
        if not candidates:
            candidates += self.final_differences()
        return min(candidates, key=lambda difference: difference.steps) if candidates else None

    @property
    def parameters(self) -> ParametersMatch:
        """How the parameters compare, if nothing differs."""
        if not self.before.record.steps and not self.before.record.processes:
            return "none"
        return "rounding" if self.rounded else "bits"

    # -- what is printed ---------------------------------------------------------------------------

    def printed_differences(self) -> Iterator[RunDifference]:
        """Yield the first difference of each stream and of each text file that was written."""
        several = bool(self.before.record.processes)
        for number, name in enumerate(_STREAMS):
            texts = [(run.output, run.errors)[number] for run in (self.before, self.after)]
            if several:  # processes print in any order
                texts = [sorted(text, key=lambda line: line.masked) for text in texts]
            line = first_difference(texts[0], texts[1], self.rounding)
            if line is not None:
                yield RunDifference(self._step_of(line, number), line.describe(name))
        steps = len(self.before.record.steps)
        files = [
            {path: text for path, text in run.files.items() if text is not None}
            for run in (self.before, self.after)
        ]
        for path in sorted({**files[0], **files[1]}):
            if path not in files[1]:
                yield RunDifference(steps, f"the file {path} is not written")
            elif path not in files[0]:
                yield RunDifference(steps, f"the file {path} is written, and was not")
            else:
                line = first_difference(files[0][path], files[1][path], self.rounding)
                if line is not None:
                    yield RunDifference(steps, line.describe(path))

    def _step_of(self, line: LineDifference, stream: int) -> int:
        record = (self.after if line.before is None else self.before).record
        return bisect_left([step.printed[stream] for step in record.steps], line.end)

    # -- how the runs end --------------------------------------------------------------------------

    def ending_differences(self) -> Iterator[RunDifference]:
        """Yield that the second run ends otherwise."""
        steps = len(self.after.record.steps)
        if self.after.why:
            yield RunDifference(steps, f"the run {self.after.why}")
        elif outcome(self.before.record.ending) != outcome(self.after.record.ending):
            yield RunDifference(
                steps,
                f"{describe_ending(self.after.record.ending)} instead of "
                f"{describe_ending(self.before.record.ending)}",
            )

    # -- parameters and buffers --------------------------------------------------------------------

    def state_difference(self) -> RunDifference | None:
        """Return the first difference of parameters, buffers and learning rates."""
        records = self.before.record, self.after.record
        difference = self._compare_steps(records[0].steps, records[1].steps, "")
        if difference is not None:
            return difference
        if len(records[0].processes) != len(records[1].processes):
            numbers = [count(len(record.processes), "process") for record in records]
            return RunDifference(0, f"{numbers[1]} instead of {numbers[0]} trained")
        for old, new in zip(records[0].processes, records[1].processes, strict=True):
            difference = self._compare_steps(old.steps, new.steps, f"rank {old.rank}, ")
            if difference is not None:
                return difference
        return None

    def _compare_steps(
        self, before: Sequence[StepRecord], after: Sequence[StepRecord], prefix: str
    ) -> RunDifference | None:
        for number, (old, new) in enumerate(zip_longest(before, after), 1):
            if new is None:
                return RunDifference(
                    number - 1, f"{prefix}{count(len(after), 'optimizer step')} instead of {len(before)}"
                )
            if old is None:
                return RunDifference(number - 1, f"{prefix}an optimizer step beyond the {len(before)} before")
            text = self._compare_step(old, new)
            if text:
                return RunDifference(number, f"{prefix}step {number}, {text}")
        return None

    def _compare_step(self, old: StepRecord, new: StepRecord) -> str:
        if old.optimizer != new.optimizer:
            return f"{new.optimizer} steps instead of {old.optimizer}"
        text = self._compare_tensor_lists(old.tensors, new.tensors) or self._compare_idle(old.idle, new.idle)
        if text:
            return text
        after = dict(new.rates)
        for name, rate in old.rates:
            now = after.get(name, rate)
            if rate != now and not abs(rate - now) <= self.rounding * abs(rate):
                return f"the learning rate of {name} is {now!r} instead of {rate!r}"
        return ""

    def _compare_idle(self, old: Sequence[TensorRecord], new: Sequence[TensorRecord]) -> str:
        """Return how modules that are not trained differ, of classes with as many modules in both runs."""
        names = [_names_by_class(records) for records in (old, new)]
        comparable = {kind for kind in names[0] if names[0][kind] == names[1].get(kind)}
        if self.rounding:  # several modules of a class are told apart by their bits
            comparable = {kind for kind in comparable if not any("#" in name for name in names[0][kind])}
        pairs = zip(
            *([record for record in records if _class_of(record) in comparable] for records in (old, new)),
            strict=True,
        )
        return next((text for was, now in pairs if (text := self.compare_tensors(was, now))), "")

    def _compare_tensor_lists(self, old: Sequence[TensorRecord], new: Sequence[TensorRecord]) -> str:
        """Return how the first of several tensors differs; "" if none does."""
        if [record.name for record in old] != [record.name for record in new]:
            from gapless.prove.same import pair_by_name

            before = {record.name: record for record in old}
            after = {record.name: record for record in new}
            names = pair_by_name(before, after)
            if names is None:
                odd = next(iter([*(before.keys() - after.keys()), *(after.keys() - before.keys())]))
                return f"{odd} is trained {'no more' if odd in before else 'too'}"
            pairs = [(before[was], after[now]) for was, now in names]
        else:
            pairs = list(zip(old, new, strict=True))
        for was, now in pairs:
            text = self.compare_tensors(was, now)
            if text:
                return text
        return ""

    def compare_tensors(self, old: TensorRecord, new: TensorRecord) -> str:
        """Return how two tensors differ; "" if they are the same."""
        if (old.digest, old.dtype, old.shape) == (new.digest, new.dtype, new.shape):
            return ""
        from gapless.analyze.tables.proof_tables import describe_difference
        from gapless.model.proof import Difference

        if old.shape != new.shape:
            return describe_difference(
                Difference(where=old.name, kind="shape", before=str(old.shape), after=str(new.shape))
            )
        if old.dtype != new.dtype:
            return describe_difference(
                Difference(where=old.name, kind="dtype", before=old.dtype, after=new.dtype)
            )
        if old.offset < 0 or new.offset < 0:
            return f"{old.name} differs (its elements were not kept)"
        return self._compare_elements(old, new)

    def _compare_elements(self, old: TensorRecord, new: TensorRecord) -> str:
        import msgspec

        from gapless.analyze.tables.proof_tables import describe_difference
        from gapless.prove.equality import ResultComparison

        was, now = (_elements(run, record) for run, record in ((self.before, old), (self.after, new)))
        largest = float(was.abs().double().nan_to_num(0.0, 0.0, 0.0).max()) if was.is_floating_point() else 0
        comparison = ResultComparison(rtol=0.0, atol=self.rounding * largest)
        comparison.compare_tensors(old.name, was, now)
        if not comparison.differences and not self.rounding:
            _compare_zeros(comparison, old.name, was, now)
        if comparison.differences:
            first = comparison.differences[0]
            if first.at:
                flat = first.at[0] * old.stride
                place = tuple(int(index) for index in np.unravel_index(flat, old.shape)) if old.shape else ()
                first = msgspec.structs.replace(first, at=place)
            return describe_difference(first)
        if old.stride > 1 and not self.rounding:
            return f"{old.name} differs, in an element that was not kept"
        self.rounded |= self.rounding > 0  # else the bits of what is no number differ
        return ""

    # -- at the end --------------------------------------------------------------------------------

    def final_differences(self) -> Iterator[RunDifference]:
        """Yield differences of optimizer states, outputs and random numbers at the end."""
        before, after = self.before.record, self.after.record
        steps = len(before.steps)
        states = {record.name: record for record in after.final}
        for record in before.final:
            text = self.compare_tensors(record, states.get(record.name, record))
            if text:
                yield RunDifference(steps, f"at the end, {text}")
        if len(before.saved) != len(after.saved):
            yield RunDifference(steps, f"{len(after.saved)} saved values instead of {len(before.saved)}")
        elif text := self._compare_tensor_lists(before.saved, after.saved):
            yield RunDifference(steps, f"in what is saved, {text}")
        if not steps and not before.processes:
            yield from self._result_differences(before, after)
        for name, state in before.random.items():
            if after.random.get(name, state) != state:
                yield RunDifference(steps, f"at the end, the random numbers of {name} are at another place")

    def _result_differences(self, before: RunRecord, after: RunRecord) -> Iterator[RunDifference]:
        for old, new in zip(before.results, after.results, strict=False):
            text = self.compare_tensors(old, new)
            if text:
                yield RunDifference(0, text)
        if len(before.results) != len(after.results):
            yield RunDifference(0, f"{len(after.results)} outputs of models instead of {len(before.results)}")


def _class_of(record: TensorRecord) -> str:
    return record.name.partition(".")[0].partition("#")[0]


def _names_by_class(records: Sequence[TensorRecord]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for record in records:
        names.setdefault(_class_of(record), []).append(record.name)
    return names


def _compare_zeros(comparison: Any, name: str, old: Any, new: Any) -> None:
    """Add a difference to `comparison` if zeros have other signs: what is divided by them has, too."""
    import torch

    signs = [
        torch.signbit(torch.view_as_real(side) if side.is_complex() else side.double())
        for side in (old, new)
        if side.is_complex() or side.is_floating_point()
    ]
    if signs:
        zero = (torch.view_as_real(old) if old.is_complex() else old.double()) == 0
        comparison.compare_tensors(f"the sign of {name}", *(sign & zero for sign in signs))


def _elements(run: Run, record: TensorRecord) -> Any:
    """Return the stored elements of a tensor."""
    import torch

    dtype: Any = getattr(torch, record.dtype.removesuffix(" number"))
    size = record.stored * dtype.itemsize
    with open(run.values, "rb") as file:
        file.seek(record.offset)
        return torch.frombuffer(bytearray(file.read(size)), dtype=dtype)


def outcome(ending: Ending) -> tuple[str, int]:
    """Return how a run ended, as far as two runs can be compared: ``sys.exit()`` is an end like any other."""
    return ("finished" if ending.is_own else ending.how), ending.status


def describe_ending(ending: Ending) -> str:
    """Return ``ends with ValueError: no data at train.py:31``."""
    if ending.how in ("error", "not-emulated"):
        where = f" at {ending.where}" if ending.where and ending.where not in ending.message else ""
        return f"ends with {ending.message}{where}"
    if ending.how == "exit" and ending.status:
        return f"exits with status {ending.status}"
    return {"enough-steps": "goes on", "interrupted": "is interrupted"}.get(ending.how, "finishes")
