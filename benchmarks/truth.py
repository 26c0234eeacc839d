"""What real GPUs said of the table of waits: signatures counted in profiles, called again under emulation.

    python benchmarks/truth.py                       # the counts, and what disagrees
    python benchmarks/truth.py --write               # writes the sheet, and the table's column of evidence
    python benchmarks/truth.py FILE…                 # other evidence, with the same columns
    python benchmarks/truth.py FILE… --condense      # makes benchmarks/evidence/signatures.tsv of it

Each signature of benchmarks/evidence/signatures.tsv is an operator with the sizes, types and plain arguments
of calls in public profiles, and how often the CPU waited in them. Exits with 1 when something disagrees that
has no reason below.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import _sheet
from _signatures import (
    FILE,
    Replayer,
    Seen,
    Signature,
    Unknown,
    condensed,
    read,
    smaller,
    ways,
    write,
)

from gapless.emulate.waits import COLUMNS, PATH, Row, table

GPU = "NVIDIA H100"
FIRST_USE = "aten::(mm|addmm|bmm|cudnn_batch_norm_backward)"


@dataclass(frozen=True)
class Outcome:
    """A signature beside what the emulated device says: the fewest and the most waits that it allows."""

    signature: Signature
    least: int = 0
    most: int = 0
    rows: frozenset[tuple[Row, int]] = frozenset()
    """Rows of the table of waits that were met, and in how many of the calls."""
    unknown: str = ""
    """Why it could not be called again."""

    @property
    def agrees(self) -> bool:
        return self.least <= self.signature.counts.waits <= self.most

    @property
    def decided(self) -> bool:
        return self.least == self.most

    @property
    def reason(self) -> str:
        """Why it may disagree; "" where nothing explains it."""
        counts, gpus = self.signature.counts, self.signature.gpus
        if counts.waits > self.most and "AMD" in gpus and counts.with_d2h_copy != counts.calls_that_waited:
            return "on AMD the profiler takes a read of some bytes for a copy within the device"
        if not counts.waits and counts.with_d2h_copy == counts.calls and self.signature.concrete == "null":
            return "a read without a wait: profiles of this age lack the driver's calls"
        if self.least < 0 and self.signature.concrete == "null":
            return "whether a size was given, which saves the wait, is not recorded"
        return ""


def outcome(one: Signature, replayer: Replayer) -> Outcome:
    """Call `one` in all ways, and add up what those wait whose copies the profiles have."""
    seen: set[Seen] = set()
    problem = ""
    try:
        for like in filter(None, (smaller(one), one)):
            for way in ways(like):
                try:
                    seen.add(replayer.see(way))
                except Exception as error:  # torch refuses arguments in many ways
                    problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            if seen:
                break
    except Unknown as unknown:
        return Outcome(one, unknown=str(unknown))
    if not seen:
        return Outcome(one, unknown=f"torch refuses what was recorded of its arguments ({problem})")
    least, most, rows = 0, 0, set()
    for number, h2d, d2h in _groups(one):
        fits = [each for each in seen if (each.h2d, each.d2h) == (h2d, d2h)]
        if not fits:
            return Outcome(one, least=-1, most=-1)  # no way of calling it has these copies
        waits = [each.waits for each in fits]
        least, most = least + number * min(waits), most + number * max(waits)
        rows |= {(row, number) for row in frozenset.intersection(*(each.rows for each in fits))}
    return Outcome(one, least, most, frozenset(rows))


def _groups(one: Signature) -> Iterable[tuple[int, bool, bool]]:
    """How many calls there are with copies to the device and from it: ``(calls, to, from)``."""
    counts = one.counts
    both = max(0, counts.with_h2d_copy + counts.with_d2h_copy - counts.calls)
    to, back = counts.with_h2d_copy - both, counts.with_d2h_copy - both
    groups = ((both, True, True), (to, True, False), (back, False, True))
    rest = counts.calls - both - to - back
    return [group for group in (*groups, (rest, False, False)) if group[0]]


def outcomes(signatures: Iterable[Signature]) -> Iterator[Outcome]:
    """Each signature beside what the emulated device says of it."""
    with warnings.catch_warnings(), Replayer(GPU) as replayer:
        warnings.simplefilter("ignore")
        for one in signatures:
            yield outcome(one, replayer)


def disagreements(found: Iterable[Outcome]) -> list[Outcome]:
    """Those that do not agree, whether there is a reason or not; most calls first."""
    wrong = [one for one in found if not one.unknown and not one.agrees]
    return sorted(wrong, key=lambda one: -one.signature.counts.calls)


# -- the evidence of each row --------------------------------------------------------------------------------


def evidence(found: Iterable[Outcome]) -> dict[tuple[str, str, str], str]:
    """What is seen of each row of the table, ``(scope, name, when) → text``; the others are not there."""
    calls: Counter[tuple[str, str, str]] = Counter()
    gpus: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for one in found:
        if one.agrees or one.reason.startswith("on AMD"):
            for row, number in one.rows:
                key = (row.scope, row.name, row.when)
                calls[key] += number
                gpus[key] |= set(one.signature.gpus.split("; ")) - {"?"}
    return {
        key: f"{number} calls" + (f" on {len(gpus[key])} GPU models" if len(gpus[key]) > 1 else "")
        for key, number in calls.items()
    }


def with_evidence(text: str, seen: dict[tuple[str, str, str], str]) -> str:
    """The table of waits with its last column written anew."""
    lines = []
    for line in text.splitlines():
        cells = line.split("\t")
        if len(cells) == len(COLUMNS) and not line.startswith("#") and cells[0] != COLUMNS[0]:
            cells[-1] = seen.get((cells[0], cells[1], cells[2]), "source")
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


# -- the sheet -----------------------------------------------------------------------------------------------


def total(found: Iterable[Outcome]) -> int:
    return sum(one.signature.counts.calls for one in found)


def sheet(found: list[Outcome]) -> str:
    again = [one for one in found if not one.unknown]
    wrong = disagreements(found)
    waited = sum(one.signature.counts.waits for one in again)
    text = _sheet.header(
        "What real GPUs said of the table of waits",
        "python benchmarks/truth.py --write",
        "signatures of operators (sizes, types, plain arguments) in 216 public profiles, V100 to B300 and "
        "MI250 to MI300, with calls and waits, alike ones put together; each is called again on the emulated "
        "device with each placement of its tensors, of which those count whose copies are the profile's. "
        "Where two placements fit and wait differently, both are allowed",
    )
    rows: list[list[object]] = [
        ["in the evidence", len(found), total(found)],
        ["called again", len(again), total(again)],
        ["of these undecided", *_counted(one for one in again if not one.decided)],
        ["agree", *_counted(one for one in again if one.agrees)],
        ["disagree with a reason", *_counted(one for one in wrong if one.reason)],
        ["disagree without one", *_counted(one for one in wrong if not one.reason)],
    ]
    text += _sheet.table(["", "signatures", "calls"], rows)
    text += f"\nIn those called again the CPU waited {waited} times.\n\n## Disagreements\n\n"
    text += _sheet.table(
        ["operator", "types", "calls", "waits", "expected", "reason"],
        [
            [
                one.signature.op, f"`{one.signature.types}`", one.signature.counts.calls,
                one.signature.counts.waits, one.most if one.least >= 0 else "no such copies", one.reason,
            ]
            for one in wrong
        ],
    )  # fmt: skip
    text += "\n## Not called again\n\n"
    reasons: Counter[str] = Counter()
    for one in found:
        if one.unknown:
            reasons[one.unknown.partition(" (")[0]] += 1
    text += _sheet.table(
        ["reason", "signatures", "calls", "waits"],
        [
            [reason, *_counted(each := [one for one in found if one.unknown.startswith(reason)]),
             sum(one.signature.counts.waits for one in each)]
            for reason, _ in reasons.most_common()
        ],
    )  # fmt: skip
    seen = evidence(found)
    met = f"{len(seen)} of {len(table().rows)} rows of the table of waits were met by calls that agree."
    text += f"\n## Rows\n\n{met}\n\n"
    text += _sheet.table(
        ["row", "when", "seen"], [[name, when, said] for (_, name, when), said in sorted(seen.items())]
    )
    return text


def _counted(found: Iterable[Outcome]) -> tuple[int, int]:
    each = list(found)
    return len(each), total(each)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="evidence; without any, the committed file")
    parser.add_argument("--condense", action="store_true", help="write the committed file of what is given")
    parser.add_argument("--write", action="store_true", help="write the sheet and the column of evidence")
    options = parser.parse_args()
    signatures = [one for file in options.files or [FILE] for one in read(file)]
    if options.condense:
        write(FILE, condensed(signatures))
        return 0
    found = list(outcomes(signatures))
    text = sheet(found)
    if options.write:
        _sheet.write("truth", text)
        PATH.write_text(with_evidence(PATH.read_text(encoding="utf-8"), evidence(found)), encoding="utf-8")
    print(text)
    return int(any(not one.reason for one in disagreements(found)))


if __name__ == "__main__":
    sys.exit(main())
