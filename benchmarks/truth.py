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

from gapless.emulation.waits.table import COLUMNS, PATH, WaitCondition, parse, waits_table

GPU = "NVIDIA H100"
READ = "aten::_local_scalar_dense"
PAGE = _sheet.HERE.parent / "docs" / "waits.md"
LISTED = "`python benchmarks/truth.py --write` writes this list:"
Key = tuple[str, str, str]
MAX_GPUS_NAMED = 4
"""More models are summed up as "n more" in the table."""
MAX_INDICES = 5
"""Most indices assumed for a call whose number of indices was not recorded."""
LIBRARIES = re.compile("aten::(addmm|bmm|mm|linear|.*conv.*|cudnn_.*)")
"""Operators whose first call in a process sets up a library, or tries its algorithms per new shape."""
TRIES = "cuDNN tries its algorithms once"
SET_UP = "the first call sets up cuBLAS or cuDNN"


@dataclass(frozen=True)
class Outcome:
    """A signature compared with the emulated device: the fewest and most waits that allows."""

    signature: Signature
    least: int = 0
    most: int = 0
    rows: frozenset[tuple[WaitCondition, int]] = frozenset()
    """Rows of the table of waits that applied, with the number of calls."""
    spared: frozenset[tuple[WaitCondition, int]] = frozenset()
    """Rows of the operators run whose condition did not hold, with the number of calls."""
    alone: bool = False
    """Whether only its operator was compared, for lack of arguments."""
    unknown: str = ""
    """Why it could not be called; "" if it was."""

    @property
    def agrees(self) -> bool:
        return self.least <= self.signature.counts.waits <= self.most

    @property
    def decided(self) -> bool:
        return self.least == self.most

    @property
    def reason(self) -> str:
        """Why it may disagree; "" if nothing explains it."""
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


def compare_signature(signature: Signature, replayer: Replayer) -> Outcome:
    """Call a signature in all ways; sum the waits of those whose copies the profiles have."""
    observations: set[Observation] = set()
    problem = ""
    try:
        for like in filter(None, (shrink(signature), signature)):
            for way in ways(like):
                try:
                    observations.add(replayer.see(way))
                except Exception as error:  # torch refuses arguments in many ways
                    problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            if observations:
                break
    except Unknown as unknown:
        return Outcome(signature, unknown=str(unknown))
    if not observations:
        return Outcome(signature, unknown=f"torch refuses what was recorded of its arguments ({problem})")
    least, most, rows, spared = 0, 0, set(), set()
    for number, h2d, d2h in _groups(signature):
        fits = [each for each in observations if (each.h2d, each.d2h) == (h2d, d2h)]
        if not fits:
            return Outcome(signature, least=-1, most=-1)  # no way of calling it has these copies
        waits = [each.waits for each in fits]
        least, most = least + number * min(waits), most + number * max(waits)
        best = _likeliest(fits, signature.counts.waits if number == signature.counts.calls else None, number)
        rows |= {(row, number) for row in frozenset.intersection(*(each.rows for each in best))}
        spared |= {(row, number) for row in frozenset.intersection(*(each.spared for each in best))}
    return Outcome(signature, least, most, frozenset(rows), frozenset(spared))


def _likeliest(fits: list[Observation], waits: int | None, number: int) -> list[Observation]:
    """Return the ways whose waits match, if known, and among them those with fewest arguments on the host."""
    right = [each for each in fits if waits in (None, each.waits * number)] or fits
    least = min(each.on_host for each in right)
    return [each for each in right if each.on_host == least]


def _groups(signature: Signature) -> Iterable[tuple[int, bool, bool]]:
    """Return how many calls copy to the device and from it: ``(calls, to, from)``."""
    counts = signature.counts
    both = max(0, counts.with_h2d_copy + counts.with_d2h_copy - counts.calls)
    to, back = counts.with_h2d_copy - both, counts.with_d2h_copy - both
    groups = ((both, True, True), (to, True, False), (back, False, True))
    rest = counts.calls - both - to - back
    return [group for group in (*groups, (rest, False, False)) if group[0]]


def compare_signatures(signatures: Iterable[Signature]) -> Iterator[Outcome]:
    """Yield each signature compared with the emulated device."""
    with warnings.catch_warnings(), Replayer(GPU) as replayer:
        warnings.simplefilter("ignore")
        for signature in signatures:
            yield compare_signature(signature, replayer)


def with_operators_alone(compared: list[Outcome]) -> list[Outcome]:
    """Compare signatures without arguments by their operator, where that decides.

    It does if every called signature of it waits as often, or if its waits are copies in one direction that
    one row of the table stands for.
    """
    waits: dict[str, set[int]] = defaultdict(set)
    for outcome in compared:
        if not outcome.unknown:
            moved = outcome.signature.counts.with_h2d_copy + outcome.signature.counts.with_d2h_copy
            waits[outcome.signature.op] |= (
                {outcome.least, outcome.most} if outcome.most or not moved else {-1, 1}
            )
    return [
        _by_operator(outcome, waits[outcome.signature.op])
        if outcome.unknown.startswith(NO_ARGUMENTS)
        else outcome
        for outcome in compared
    ]


def _by_operator(unknown: Outcome, waits: set[int]) -> Outcome:
    if waits == {0} or (not waits and never_waits(unknown.signature.op)):
        return Outcome(unknown.signature, alone=True)
    counts = unknown.signature.counts
    row = _row_of(unknown.signature)
    if row is None or counts.with_h2d_copy + counts.with_d2h_copy != counts.calls:
        return unknown
    most = counts.calls * (row.waits if row.when == "on-device" else MAX_INDICES)
    return Outcome(
        unknown.signature, counts.calls * row.waits, most, frozenset({(row, counts.calls)}), alone=True
    )


def _row_of(signature: Signature) -> WaitCondition | None:
    """Return the row that its copies in one direction must come from."""
    op = {"aten::item": READ, "aten::is_nonzero": READ, "aten::index": "aten::index.Tensor"}.get(
        signature.op, signature.op
    )
    to_device = signature.counts.with_d2h_copy == 0
    rows = [row for row in waits_table().rows if row.name == op and (row.mechanism == "h2d") == to_device]
    several = {row for row in rows if row.when != "put-host-value"}  # of which there is one, at most
    if signature.counts.waits > signature.counts.calls:
        rows = list(several)
    return rows[0] if len(rows) == 1 else None


def disagreements(compared: Iterable[Outcome]) -> list[Outcome]:
    """Return the disagreements, with a reason or without; most calls first."""
    wrong = [outcome for outcome in compared if not outcome.unknown and not outcome.agrees]
    return sorted(wrong, key=lambda outcome: -outcome.signature.counts.calls)


# -- the evidence of each row --------------------------------------------------------------------------------


def evidence(compared: Iterable[Outcome]) -> dict[Key, str]:
    """Return what was seen of each row, ``(scope, name, when) → text``; other rows are absent."""
    met: dict[Key, Calls] = defaultdict(Calls)
    spared: dict[Key, Calls] = defaultdict(Calls)
    for outcome in compared:
        for rows, of in ((outcome.rows, met), (outcome.spared, spared)):
            for row, number in rows:
                of[row.scope, row.name, row.when].add(outcome, number)
    texts = {
        key: f"unseen; without the condition {calls.text('had no such wait')}"
        for key, calls in spared.items()
    }
    texts |= {key: f"seen {calls.text()}" for key, calls in met.items() if calls.agreed}
    return texts | dict(_same_code(texts))


def _same_code(texts: dict[Key, str]) -> Iterator[tuple[Key, str]]:
    """Yield unseen rows of a function that other rows show to wait for the same reason."""
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
    """Calls where a row of the table applied, or whose operator ran without its condition."""

    agreed: int = 0
    all: int = 0
    models: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome, number: int) -> None:
        self.all += number
        if outcome.agrees or outcome.reason.startswith("on AMD"):
            self.agreed += number
            self.models |= set(map(model, outcome.signature.gpus.split("; "))) - {"?"}

    def text(self, remark: str = "") -> str:
        named = sorted(self.models)
        if len(named) > MAX_GPUS_NAMED:
            named[MAX_GPUS_NAMED:] = [f"{len(named) - MAX_GPUS_NAMED} more"]
        counts = f"{self.agreed} of {self.all}{remark and f' {remark}'}"
        return f"{counts}: {', '.join(named)}" if named else counts


def model(gpu: str) -> str:
    """Return the model of a GPU: ``NVIDIA A100-SXM4-40GB`` is an A100."""
    name = re.sub(r"^((NVIDIA|AMD|Tesla|Quadro|GeForce|Instinct) )+", "", gpu)
    return re.split(r"[- ](?:SXM|PCI|DGXS|PG|VF|HBM|\d+GB)", name)[0]


def with_evidence(text: str, evidence_of: dict[Key, str]) -> str:
    """Return the table of waits with its last column replaced."""
    lines = []
    for line in text.splitlines():
        cells = line.split("\t")
        if len(cells) == len(COLUMNS) and not line.startswith("#") and cells[0] != COLUMNS[0]:
            cells[-1] = evidence_of.get((cells[0], cells[1], cells[2]), "source")
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


def markdown_list(rows: Iterable[WaitCondition]) -> str:
    """Return a Markdown table of what each of `rows` rests on; equal ones share a line."""
    alike: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in rows:
        alike[row.when, row.known_from].setdefault(row.name)
    lines = [
        f"| {', '.join(f'`{name}`' for name in names)} | `{when}` | {source} |"
        for (when, source), names in alike.items()
    ]
    return "\n".join(["| operators | condition | known from |", "|---|---|---|", *lines]) + "\n"


def with_list(page: str, rows: Iterable[WaitCondition]) -> str:
    """Return `page` with the list of `rows` replaced, the last thing in its section."""
    head, mark, rest = page.partition(LISTED)
    _, begin, after = rest.partition("\n## ")
    return f"{head}{mark}\n\n{markdown_list(rows)}{begin}{after}"


# -- the sheet -----------------------------------------------------------------------------------------------


def total_calls(compared: Iterable[Outcome]) -> int:
    return sum(outcome.signature.counts.calls for outcome in compared)


def sheet(compared: list[Outcome]) -> str:
    text = _sheet.header(
        "What real GPUs said of the table of waits",
        "python benchmarks/truth.py --write",
        "signatures of operators (sizes, types, plain arguments) in 216 public profiles, V100 to B300 and "
        "MI250 to MI300, with calls and waits, alike ones put together; each is called again on the emulated "
        "device with each placement of its tensors, of which those count whose copies are the profile's. "
        "Where two placements fit and wait differently, both are allowed",
    )
    again, wrong = [outcome for outcome in compared if not outcome.unknown], disagreements(compared)
    rows: list[list[object]] = [
        ["in the evidence", len(compared), total_calls(compared)],
        ["called again", len(again), total_calls(again)],
        ["of these by their operator alone", *_counts(outcome for outcome in again if outcome.alone)],
        ["of these undecided", *_counts(outcome for outcome in again if not outcome.decided)],
        ["agree", *_counts(outcome for outcome in again if outcome.agrees)],
        ["disagree with a reason", *_counts(outcome for outcome in wrong if outcome.reason)],
        ["disagree without one", *_counts(outcome for outcome in wrong if not outcome.reason)],
    ]
    text += _sheet.table(["", "signatures", "calls"], rows)
    return text + _by_waits(again) + _disagreeing(wrong) + _not_called_again(compared) + _seen_rows(compared)


def _by_waits(again: list[Outcome]) -> str:
    """Return precision and recall by waits, with and without what arguments cannot tell."""
    waited = sum(outcome.signature.counts.waits for outcome in again)
    false = sum(max(0, max(outcome.least, 0) - outcome.signature.counts.waits) for outcome in again)
    why: Counter[str] = Counter()
    for outcome in again:
        why[outcome.reason] += max(0, outcome.signature.counts.waits - outcome.most)
    missed = why.total()
    hit = waited - missed
    reasons = "".join(f"- {count} of them: {reason}\n" for reason, count in why.most_common() if count)
    noted = why[TRIES] + why[SET_UP]
    return (
        f"\nIn those called again the CPU waited {waited} times: {missed} of these waits were not expected, "
        f"and {false} that were expected did not come. By waits the precision is {hit / (hit + false):.4f} "
        f"and the recall {hit / waited:.4f}; without the tries of cuDNN and the first calls of libraries, "
        "whose lines `gapless check` names without counting a wait, the recall is "
        f"{hit / (waited - noted):.4f}. Not expected were:\n\n{reasons}"
    )


def _disagreeing(wrong: list[Outcome]) -> str:
    alike: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in wrong:
        alike[outcome.signature.op, outcome.signature.types, outcome.reason].append(outcome)
    rows: list[list[object]] = [
        [op, f"`{types}`", total_calls(each), *_waits(each), reason]
        for (op, types, reason), each in alike.items()
    ]
    columns = ["operator", "types", "calls", "waits", "expected", "reason"]
    return "\n## Disagreements\n\n" + _sheet.table(columns, rows)


def _not_called_again(compared: list[Outcome]) -> str:
    reasons: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in compared:
        if outcome.unknown:
            reasons[outcome.unknown.partition(" (")[0]].append(outcome)
    rows: list[list[object]] = [
        [reason, *_counts(each), sum(outcome.signature.counts.waits for outcome in each)]
        for reason, each in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    columns = ["reason", "signatures", "calls", "waits"]
    return "\n## Not called again\n\n" + _sheet.table(columns, rows)


def _seen_rows(compared: list[Outcome]) -> str:
    evidence_of = evidence(compared)
    shown = sum(said.startswith("seen ") for said in evidence_of.values())
    met = (
        f"Of {len(waits_table().rows)} rows of the table of waits {shown} were met by calls that agree; of "
        f"{len(evidence_of) - shown} more there were calls without the condition."
    )
    rows: list[list[object]] = [[name, when, said] for (_, name, when), said in sorted(evidence_of.items())]
    return f"\n## Rows\n\n{met}\n\n" + _sheet.table(["row", "when", "seen"], rows)


def _waits(compared: list[Outcome]) -> tuple[int, int | str]:
    """Return the waits seen, and the most expected."""
    waits = sum(outcome.signature.counts.waits for outcome in compared)
    return waits, sum(outcome.most for outcome in compared) if compared[0].least >= 0 else "no such copies"


def _counts(compared: Iterable[Outcome]) -> tuple[int, int]:
    each = list(compared)
    return len(each), total_calls(each)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="evidence; without any, the committed file")
    parser.add_argument("--condense", action="store_true", help="write the committed file of what is given")
    parser.add_argument("--write", action="store_true", help="write the sheet and the column of evidence")
    options = parser.parse_args()
    signatures = [signature for file in options.files or [FILE] for signature in read(file)]
    if options.condense:
        write(FILE, condense(signatures))
        return 0
    compared = with_operators_alone(list(compare_signatures(signatures)))
    text = sheet(compared)
    if options.write:
        _sheet.write("truth", text)
        written = with_evidence(PATH.read_text(encoding="utf-8"), evidence(compared))
        PATH.write_text(written, encoding="utf-8")
        page = with_list(PAGE.read_text(encoding="utf-8"), parse(written).rows)
        PAGE.write_text(page, encoding="utf-8")
    print(text)
    return int(any(not outcome.reason for outcome in disagreements(compared)))


if __name__ == "__main__":
    sys.exit(main())
