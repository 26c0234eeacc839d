"""What real GPUs said of the table of waits: signatures counted in profiles, called again under emulation.

    python benchmarks/truth.py                       # the counts, and what disagrees
    python benchmarks/truth.py --write               # writes the sheet, evidence, list in docs/waits.md
    python benchmarks/truth.py FILE…                 # other evidence, with the same columns
    python benchmarks/truth.py FILE… --condense      # makes benchmarks/evidence/signatures.tsv of it

Each signature of benchmarks/evidence/signatures.tsv is an operator with the sizes, types and plain arguments
of calls in public profiles, and how often the CPU waited in them. Exits with 1 when something disagrees that
has no reason below.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import _sheet
from _signatures import (
    FILE,
    NO_ARGUMENTS,
    Observation,
    Replayer,
    Signature,
    Unknown,
    condense,
    never_waits,
    read,
    shrink,
    ways,
    write,
)

from gapless.emulation.waits.table import COLUMNS, PATH, Row, parse, waits_table

GPU = "NVIDIA H100"
READ = "aten::_local_scalar_dense"
PAGE = PATH.parents[3] / "docs" / "waits.md"
LISTED = "`python benchmarks/truth.py --write` writes this list:"
Key = tuple[str, str, str]
MOST_NAMED = 4
"""So many models of GPUs are named in the table."""
INDICES = 5
"""So many indices, at most, has a call in which their number was not recorded."""
LIBRARIES = re.compile("aten::(addmm|bmm|mm|linear|.*conv.*|cudnn_.*)")
"""Operators whose first call in a process sets up a library, or tries its algorithms for each new shape."""
TRIES = "cuDNN tries its algorithms once"
SET_UP = "the first call sets up cuBLAS or cuDNN"


@dataclass(frozen=True)
class Outcome:
    """A signature beside what the emulated device says: the fewest and the most waits that it allows."""

    signature: Signature
    least: int = 0
    most: int = 0
    rows: frozenset[tuple[Row, int]] = frozenset()
    """Rows of the table of waits that were met, and in how many of the calls."""
    spared: frozenset[tuple[Row, int]] = frozenset()
    """Rows of the operators that ran whose condition did not hold, in the same way."""
    alone: bool = False
    """Whether it has no arguments, and only its operator was compared."""
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
        once = counts.calls_that_waited <= counts.profiles
        if self.alone and counts.waits > self.most and once and LIBRARIES.fullmatch(self.signature.op):
            copied = counts.with_h2d_copy == counts.calls_that_waited
            return SET_UP if copied else TRIES
        if self.least < 0 and self.signature.concrete == "null":
            return "whether a size was given, which saves the wait, is not recorded"
        return ""


def outcome(one: Signature, replayer: Replayer) -> Outcome:
    """Call `one` in all ways, and add up what those wait whose copies the profiles have."""
    seen: set[Observation] = set()
    problem = ""
    try:
        for like in filter(None, (shrink(one), one)):
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
    least, most, rows, spared = 0, 0, set(), set()
    for number, h2d, d2h in _groups(one):
        fits = [each for each in seen if (each.h2d, each.d2h) == (h2d, d2h)]
        if not fits:
            return Outcome(one, least=-1, most=-1)  # no way of calling it has these copies
        waits = [each.waits for each in fits]
        least, most = least + number * min(waits), most + number * max(waits)
        best = _simplest(fits, one.counts.waits if number == one.counts.calls else None, number)
        rows |= {(row, number) for row in frozenset.intersection(*(each.rows for each in best))}
        spared |= {(row, number) for row in frozenset.intersection(*(each.spared for each in best))}
    return Outcome(one, least, most, frozenset(rows), frozenset(spared))


def _simplest(fits: list[Observation], waits: int | None, number: int) -> list[Observation]:
    """Those with the waits that were seen, where that is known, and of them those with least on the host."""
    right = [each for each in fits if waits in (None, each.waits * number)] or fits
    least = min(each.on_host for each in right)
    return [each for each in right if each.on_host == least]


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


def with_operators_alone(found: list[Outcome]) -> list[Outcome]:
    """`found`, where signatures without arguments are compared as far as their operator alone decides.

    It does where every call of it that could be made again waits as often, and where its waits are copies in
    one direction that one row of the table stands for.
    """
    waits: dict[str, set[int]] = defaultdict(set)
    for one in found:
        if not one.unknown:
            moved = one.signature.counts.with_h2d_copy + one.signature.counts.with_d2h_copy
            waits[one.signature.op] |= {one.least, one.most} if one.most or not moved else {-1, 1}
    return [
        _alone(one, waits[one.signature.op]) if one.unknown.startswith(NO_ARGUMENTS) else one for one in found
    ]


def _alone(one: Outcome, waits: set[int]) -> Outcome:
    if waits == {0} or (not waits and never_waits(one.signature.op)):
        return Outcome(one.signature, alone=True)
    counts = one.signature.counts
    row = _row_of(one.signature)
    if row is None or counts.with_h2d_copy + counts.with_d2h_copy != counts.calls:
        return one
    most = counts.calls * (row.waits if row.when == "on-device" else INDICES)
    return Outcome(
        one.signature, counts.calls * row.waits, most, frozenset({(row, counts.calls)}), alone=True
    )


def _row_of(one: Signature) -> Row | None:
    """The row that its copies in one direction must come from."""
    op = {"aten::item": READ, "aten::is_nonzero": READ, "aten::index": "aten::index.Tensor"}.get(
        one.op, one.op
    )
    to_device = one.counts.with_d2h_copy == 0
    rows = [row for row in waits_table().rows if row.name == op and (row.mechanism == "h2d") == to_device]
    several = {row for row in rows if row.when != "put-host-value"}  # of which there is one, at most
    if one.counts.waits > one.counts.calls:
        rows = list(several)
    return rows[0] if len(rows) == 1 else None


def disagreements(found: Iterable[Outcome]) -> list[Outcome]:
    """Those that do not agree, whether there is a reason or not; most calls first."""
    wrong = [one for one in found if not one.unknown and not one.agrees]
    return sorted(wrong, key=lambda one: -one.signature.counts.calls)


# -- the evidence of each row --------------------------------------------------------------------------------


def evidence(found: Iterable[Outcome]) -> dict[Key, str]:
    """What is seen of each row of the table, ``(scope, name, when) → text``; the others are not there."""
    met: dict[Key, Calls] = defaultdict(Calls)
    spared: dict[Key, Calls] = defaultdict(Calls)
    for one in found:
        for rows, of in ((one.rows, met), (one.spared, spared)):
            for row, number in rows:
                of[row.scope, row.name, row.when].add(one, number)
    texts = {
        key: f"unseen; without the condition {calls.text('had no such wait')}"
        for key, calls in spared.items()
    }
    texts |= {key: f"seen {calls.text()}" for key, calls in met.items() if calls.agreed}
    return texts | dict(_the_same_code(texts))


def _the_same_code(texts: dict[Key, str]) -> Iterator[tuple[Key, str]]:
    """Rows that nothing was seen of, of a function that others showed to wait for the same reason."""
    shown = {
        (row.source, row.reason, row.waits): row.name
        for row in reversed(waits_table().rows)
        if texts.get((row.scope, row.name, row.when), "").startswith("seen ")
    }
    for row in waits_table().rows:
        other = shown.get((row.source, row.reason, row.waits))
        if other is not None and not texts.get((row.scope, row.name, row.when), "").startswith("seen "):
            yield (row.scope, row.name, row.when), f"seen in {other}, the same code"


@dataclass
class Calls:
    """Calls that met a row of the table, or had its operator without its condition."""

    agreed: int = 0
    all: int = 0
    models: set[str] = field(default_factory=set)

    def add(self, one: Outcome, number: int) -> None:
        self.all += number
        if one.agrees or one.reason.startswith("on AMD"):
            self.agreed += number
            self.models |= set(map(model, one.signature.gpus.split("; "))) - {"?"}

    def text(self, what: str = "") -> str:
        named = sorted(self.models)
        if len(named) > MOST_NAMED:
            named[MOST_NAMED:] = [f"{len(named) - MOST_NAMED} more"]
        told = f"{self.agreed} of {self.all}{what and f' {what}'}"
        return f"{told}: {', '.join(named)}" if named else told


def model(gpu: str) -> str:
    """``NVIDIA A100-SXM4-40GB`` is an A100."""
    name = re.sub(r"^((NVIDIA|AMD|Tesla|Quadro|GeForce|Instinct) )+", "", gpu)
    return re.split(r"[- ](?:SXM|PCI|DGXS|PG|VF|HBM|\d+GB)", name)[0]


def with_evidence(text: str, seen: dict[Key, str]) -> str:
    """The table of waits with its last column written anew."""
    lines = []
    for line in text.splitlines():
        cells = line.split("\t")
        if len(cells) == len(COLUMNS) and not line.startswith("#") and cells[0] != COLUMNS[0]:
            cells[-1] = seen.get((cells[0], cells[1], cells[2]), "source")
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def listed(rows: Iterable[Row]) -> str:
    """What each of `rows` rests on, as a table of Markdown: those that rest on the same in one line."""
    alike: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in rows:
        alike[row.when, row.known_from].setdefault(row.name)
    lines = [
        f"| {', '.join(f'`{name}`' for name in names)} | `{when}` | {known} |"
        for (when, known), names in alike.items()
    ]
    return "\n".join(["| operators | condition | known from |", "|---|---|---|", *lines]) + "\n"


def with_list(page: str, rows: Iterable[Row]) -> str:
    """`page` with the list of `rows` written anew, which is the last thing in its section."""
    head, mark, rest = page.partition(LISTED)
    _, begin, after = rest.partition("\n## ")
    return f"{head}{mark}\n\n{listed(rows)}{begin}{after}"


# -- the sheet -----------------------------------------------------------------------------------------------


def total(found: Iterable[Outcome]) -> int:
    return sum(one.signature.counts.calls for one in found)


def sheet(found: list[Outcome]) -> str:
    text = _sheet.header(
        "What real GPUs said of the table of waits",
        "python benchmarks/truth.py --write",
        "signatures of operators (sizes, types, plain arguments) in 216 public profiles, V100 to B300 and "
        "MI250 to MI300, with calls and waits, alike ones put together; each is called again on the emulated "
        "device with each placement of its tensors, of which those count whose copies are the profile's. "
        "Where two placements fit and wait differently, both are allowed",
    )
    again, wrong = [one for one in found if not one.unknown], disagreements(found)
    rows: list[list[object]] = [
        ["in the evidence", len(found), total(found)],
        ["called again", len(again), total(again)],
        ["of these by their operator alone", *_counted(one for one in again if one.alone)],
        ["of these undecided", *_counted(one for one in again if not one.decided)],
        ["agree", *_counted(one for one in again if one.agrees)],
        ["disagree with a reason", *_counted(one for one in wrong if one.reason)],
        ["disagree without one", *_counted(one for one in wrong if not one.reason)],
    ]
    text += _sheet.table(["", "signatures", "calls"], rows)
    return text + _by_waits(again) + _disagreeing(wrong) + _not_called_again(found) + _seen_rows(found)


def _by_waits(again: list[Outcome]) -> str:
    """Precision and recall by waits, with and without what no operator's arguments can tell."""
    waited = sum(one.signature.counts.waits for one in again)
    false = sum(max(0, max(one.least, 0) - one.signature.counts.waits) for one in again)
    why: Counter[str] = Counter()
    for one in again:
        why[one.reason] += max(0, one.signature.counts.waits - one.most)
    missed = why.total()
    hit = waited - missed
    told = "".join(f"- {count} of them: {reason}\n" for reason, count in why.most_common() if count)
    noted = why[TRIES] + why[SET_UP]
    return (
        f"\nIn those called again the CPU waited {waited} times: {missed} of these waits were not expected, "
        f"and {false} that were expected did not come. By waits the precision is {hit / (hit + false):.4f} "
        f"and the recall {hit / waited:.4f}; without the tries of cuDNN and the first calls of libraries, "
        "whose lines `gapless check` names without counting a wait, the recall is "
        f"{hit / (waited - noted):.4f}. Not expected were:\n\n{told}"
    )


def _disagreeing(wrong: list[Outcome]) -> str:
    alike: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in wrong:
        alike[one.signature.op, one.signature.types, one.reason].append(one)
    rows: list[list[object]] = [
        [op, f"`{types}`", total(each), *_waits(each), reason] for (op, types, reason), each in alike.items()
    ]
    columns = ["operator", "types", "calls", "waits", "expected", "reason"]
    return "\n## Disagreements\n\n" + _sheet.table(columns, rows)


def _not_called_again(found: list[Outcome]) -> str:
    reasons: dict[str, list[Outcome]] = defaultdict(list)
    for one in found:
        if one.unknown:
            reasons[one.unknown.partition(" (")[0]].append(one)
    rows: list[list[object]] = [
        [reason, *_counted(each), sum(one.signature.counts.waits for one in each)]
        for reason, each in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    columns = ["reason", "signatures", "calls", "waits"]
    return "\n## Not called again\n\n" + _sheet.table(columns, rows)


def _seen_rows(found: list[Outcome]) -> str:
    seen = evidence(found)
    shown = sum(said.startswith("seen ") for said in seen.values())
    met = (
        f"Of {len(waits_table().rows)} rows of the table of waits {shown} were met by calls that agree; of "
        f"{len(seen) - shown} more there were calls without the condition."
    )
    rows: list[list[object]] = [[name, when, said] for (_, name, when), said in sorted(seen.items())]
    return f"\n## Rows\n\n{met}\n\n" + _sheet.table(["row", "when", "seen"], rows)


def _waits(found: list[Outcome]) -> tuple[int, int | str]:
    """Waits that were seen, and those that were expected, at most."""
    waits = sum(one.signature.counts.waits for one in found)
    return waits, sum(one.most for one in found) if found[0].least >= 0 else "no such copies"


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
        write(FILE, condense(signatures))
        return 0
    found = with_operators_alone(list(outcomes(signatures)))
    text = sheet(found)
    if options.write:
        _sheet.write("truth", text)
        written = with_evidence(PATH.read_text(encoding="utf-8"), evidence(found))
        PATH.write_text(written, encoding="utf-8")
        page = with_list(PAGE.read_text(encoding="utf-8"), parse(written).rows)
        PAGE.write_text(page, encoding="utf-8")
    print(text)
    return int(any(not one.reason for one in disagreements(found)))


if __name__ == "__main__":
    sys.exit(main())
