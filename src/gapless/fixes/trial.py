"""Try fixes: keep those whose proof passes, and say of the others why it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.fixes.proof import ProjectVersion, ProofOptions, Prover, ScriptProject
from gapless.model.fix import Edit, Fix, FixProof, apply_edits

_ROUNDING = 1e-5
"""Share of a tensor's largest element by which a fix of level ``rounding`` may change it: a few bits of
float32, grown over the steps of a run."""
_MAX_ALONE = 12
"""Fixes that are proved one by one where together they fail: each costs a run of the script."""


@dataclass
class FixTrial:
    """The fixes that are kept, with their proof, and those that are not, with the proof that failed."""

    project: ScriptProject
    options: ProofOptions
    kept: list[Fix] = field(default_factory=list)
    failed: list[Fix] = field(default_factory=list)
    proof: FixProof | None = None
    """The proof of all that are kept; None if nothing is."""

    def run(self, fixes: Sequence[Fix]) -> None:
        """Prove `fixes`, which do not overlap: each that is ``tried`` alone, the rest together."""
        sure = [fix for fix in fixes if fix.level != "tried"]
        with Prover(ProjectVersion(self.project), self.options) as prover:
            self._prove_together(prover, sure)
            for group in _groups([fix for fix in fixes if fix.level == "tried"]):
                self._prove_next(prover, group)

    def _prove(self, prover: Prover, fixes: Sequence[Fix]) -> FixProof:
        exact = all(fix.level == "exact" for fix in fixes)
        bound = 0.0 if exact else max(self.options.rounding, _ROUNDING)
        prover.options = msgspec.structs.replace(self.options, rounding=bound)
        edits = {edit for fix in fixes for edit in fix.edits}
        return prover.prove(ProjectVersion.with_edits(self.project, edits))

    def _prove_together(self, prover: Prover, fixes: Sequence[Fix]) -> None:
        """Keep `fixes` if they pass together, without those whose lines did not run; otherwise try each."""
        if not fixes:
            return
        proof = self._prove(prover, fixes)
        if not proof.is_same and proof.not_run:
            idle = [fix for fix in fixes if self._has_idle_line(fix, fixes, proof)]
            rest = [fix for fix in fixes if fix not in idle]
            if idle and not any(_share_edits(fix, other) for fix in idle for other in rest):
                self._fail(idle, proof)
                self._prove_together(prover, rest)
                return
        if proof.is_same:
            self._keep(fixes, proof)
        elif len(groups := _groups(fixes)) == 1 or len(groups) > _MAX_ALONE:
            self._fail(fixes, proof)
        else:
            for group in groups:
                self._prove_next(prover, group)

    def _prove_next(self, prover: Prover, group: Sequence[Fix]) -> None:
        """Keep one more group if all kept ones pass with it, and wait less than without."""
        proof = self._prove(prover, [*self.kept, *group])
        before = self.proof.after if self.proof is not None else proof.before
        if proof.is_same and proof.after < before:
            self._keep(group, proof)
        else:
            gain = msgspec.structs.replace(proof, reason="its sync is not gone") if proof.is_same else proof
            self._fail(group, gain)

    def _keep(self, fixes: Sequence[Fix], proof: FixProof) -> None:
        self.kept += [msgspec.structs.replace(fix, proof=proof) for fix in fixes]
        self.proof = proof

    def _fail(self, fixes: Sequence[Fix], proof: FixProof) -> None:
        self.failed += [msgspec.structs.replace(fix, proof=proof) for fix in fixes]

    def _has_idle_line(self, fix: Fix, fixes: Sequence[Fix], proof: FixProof) -> bool:
        """Whether a line that `fix` edits, among all `fixes`, did not run."""
        edits = {edit for each in fixes for edit in each.edits}
        idle = {(line.file, line.line) for line in proof.not_run}
        for file in {edit.file for edit in fix.edits}:
            data = (self.project.root / file).read_bytes()
            own = [edit for edit in fix.edits if edit.file == file]
            rows = edited_rows(data, [edit for edit in edits if edit.file == file], own)
            if any((file, row) in idle for row in rows):
                return True
        return False


def edited_rows(data: bytes, edits: Sequence[Edit], own: Sequence[Edit]) -> Iterator[int]:
    """Yield the line numbers, behind all `edits` of a file, of the lines that `own` ones among them change.

    >>> first, second = Edit("f", 0, 0, "x\\n"), Edit("f", 2, 3, "c")
    >>> list(edited_rows(b"a\\nb\\n", [first, second], [second]))
    [3]
    """
    for edit in own:
        before = [other for other in edits if (other.start, other.end) < (edit.start, edit.end)]
        head = apply_edits(data[: edit.start], before)
        first = head.count(b"\n") + 1
        text = edit.text.removesuffix("\n").removesuffix("\r")
        yield from range(first, first + text.count("\n") + 1)


def _share_edits(fix: Fix, other: Fix) -> bool:
    """Whether the two change the same code; an import that both need is none."""
    shared = set(fix.edits) & set(other.edits)
    return any(not edit.text.startswith(("import ", "from ")) for edit in shared)


def _groups(fixes: Sequence[Fix]) -> list[list[Fix]]:
    """Return `fixes` in groups that share edits, and so are one change."""
    groups: list[list[Fix]] = []
    for fix in fixes:
        shared = [group for group in groups if any(_share_edits(fix, other) for other in group)]
        groups = [group for group in groups if group not in shared]
        groups.append([*(each for group in shared for each in group), fix])
    return groups
