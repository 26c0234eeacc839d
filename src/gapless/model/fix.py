"""`Fix`: the change that removes a finding's waits, as edits of the source, with its proof."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable
from typing import Literal

import msgspec

from gapless.model.session import Ending
from gapless.model.source import SourceLine

FixLevel = Literal["exact", "rounding", "tried", "suggested"]
"""What a fix may change.

- ``exact``: nothing that is computed or printed;
- ``rounding``: the last bits of results, because sums are formed in another order;
- ``tried``: what follows cannot be determined from the source: it is kept only if its proof passes;
- ``suggested``: results or what is logged, so that only the user can decide.
"""

ParametersMatch = Literal["bits", "rounding", "different", "none"]
"""How parameters compare after each step; ``none``: there were none to compare."""


class Edit(msgspec.Struct, frozen=True, order=True):
    """Bytes `start` to `end` (excluded) of `file`, as it was before any edit, become `text`.

    `file` is relative to the project's root if it is below it. An empty span inserts.
    """

    file: str
    start: int
    end: int
    text: str

    def overlaps(self, other: Edit) -> bool:
        """Return whether the two cannot both be applied; insertions at one place can.

        >>> Edit("a.py", 3, 5, "x").overlaps(Edit("a.py", 4, 8, "y"))
        True
        """
        return self.file == other.file and self.start < other.end and other.start < self.end


class LineWaits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Waits per step at one line of the code before or after a change; 0 where the line does not wait.

    Lines are compared by their place in the code before; `line` is that place, or for a line that is new its
    own. The totals are waits of the whole run, set-up and evaluations included.
    """

    line: SourceLine
    before: float = 0.0
    after: float = 0.0
    total_before: int = 0
    total_after: int = 0


ProofOutcome = Literal["bits", "rounding", "refused", "unprovable"]
"""What a proof says.

- ``bits``: the same to the last bit, and no sync more;
- ``rounding``: the same up to the stated bound, and no sync more;
- ``refused``: something differs, races or waits more;
- ``unprovable``: nothing differs as far as the runs show, but they do not show enough.
"""


class FixProof(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A comparison of two runs of a project: before and after a change.

    - `proved`: nothing differs but the waits, which are fewer; `reason` says why not, in one sentence.
    - `before`, `after`: waits per step, -1 where the run failed; `lines`: the lines where they differ.
    - `steps`: the number of optimizer steps whose parameters were compared.
    - `printed`: the printed lines are the same, times masked; `difference`: the first difference, of prints
      or parameters.
    - `parameters`: how parameters compare after each step.
    - `races`: codes of races that only the changed project has.
    - `not_run`: edited lines that neither run reached.
    - `endings`: how each run ended; `stopped`: both were stopped at the same step.
    - `outcome`: what the proof says without regard to a gain; `bound`: the share by which numbers may differ.
    - `notes`: how the two were compared, where that is not as usual.
    """

    proved: bool
    outcome: ProofOutcome = "unprovable"
    reason: str = ""
    before: float = 0.0
    after: float = 0.0
    lines: tuple[LineWaits, ...] = ()
    steps: int = 0
    printed: bool = False
    parameters: ParametersMatch = "none"
    difference: str = ""
    races: tuple[str, ...] = ()
    not_run: tuple[SourceLine, ...] = ()
    endings: tuple[Ending, Ending] = (Ending(), Ending())
    bound: float = 0.0
    stopped: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the two do the same with no more waits."""
        return self.outcome in ("bits", "rounding")


class Fix(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is to be written instead of the code at `line`, because of the rule `code`.

    - `title`: the change in a few words.
    - `edits`: of one or several files, in no order. Fixes may share edits: a loader's argument serves all
      copies of its batches.
    - `refusal`: why there is no fix; there are no edits then.
    - `waits`: the waits per step that it removes, if it does what it should.
    - `proof`: None if it was not run.
    """

    code: str
    line: SourceLine
    title: str = ""
    level: FixLevel = "exact"
    edits: tuple[Edit, ...] = ()
    refusal: str = ""
    waits: float = 0.0
    proof: FixProof | None = None


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the file's bytes `data` with `edits` applied, each once; all are of this file.

    Text is encoded as the file says that it is.

    Raises:
        ValueError: two of them overlap, one lies outside the file, or the encoding has no such character.

    >>> apply_edits(b"a = b.cuda()", [Edit("a.py", 11, 11, "non_blocking=True")])
    b'a = b.cuda(non_blocking=True)'
    """
    encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0].removesuffix("-sig")
    pieces: list[bytes] = []
    position = 0
    for edit in sorted(set(edits)):
        if not position <= edit.start <= edit.end <= len(data):
            raise ValueError(f"edits overlap in {edit.file} at byte {edit.start}")
        pieces += [data[position : edit.start], edit.text.encode(encoding)]
        position = edit.end
    return b"".join([*pieces, data[position:]])
