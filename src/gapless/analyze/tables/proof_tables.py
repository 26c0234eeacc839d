"""Tables of two callables side by side: differences, cost of a call, where it waits, and the sweep."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.analyze.tables.sides import MAX_ROWS_SHOWN, measure_row, two_sided_table
from gapless.model import Table
from gapless.model.comparison import Measure, scale
from gapless.model.proof import CaseResult, Difference, Proof, Sweep, Timing
from gapless.model.table import Row, Tone, table
from gapless.model.wording import rate

_OUTCOMES = {
    "same": "the same",
    "differs": "not the same",
    "outside": "outside the contract",
    "both raise": "the same error",
    "dropped": "dropped (the first raises)",
}
_TONES: dict[str, Tone] = {"same": "good", "differs": "bad"}


def tables(proof: Proof) -> tuple[Table, ...]:
    """Return the tables of `proof` that have rows."""
    results = [
        _sides(proof),
        _differences(proof),
        _outside_contract(proof),
        _costs(proof),
        _times(proof),
        _waits(proof),
        _cases(proof),
    ]
    results += [_sweep(proof.sweep)] if proof.sweep is not None else []
    return tuple(table for table in results if table.rows)


def _sides(proof: Proof) -> Table:
    """Return both callables, and how many cases agree."""
    kinds = {outcome: sum(case.outcome == outcome for case in proof.cases) for outcome in _OUTCOMES}
    text = (
        ", ".join(f"{number} {_OUTCOMES[outcome]}" for outcome, number in kinds.items() if number) or "none"
    )
    rows = [Row(("before", proof.before)), Row(("after", proof.after))]
    rows.append(Row(("cases", text + (f", on {proof.device}" if proof.device else ""))))
    if proof.again:
        rows.append(Row(("again", proof.again), "command"))
    return table("", "<", rows, where="before")


def _differences(proof: Proof) -> Table:
    """Return the differences of the cases that failed."""
    rows = [
        Row((case.name, describe_difference(mismatch)), "bad")
        for case in proof.failed
        for mismatch in case.differences
    ]
    return table("Not the same", "<", rows, shown=3, rest="more", where="before")


def _outside_contract(proof: Proof) -> Table:
    """Return the differences in cases outside the contract."""
    rows = [
        Row((case.name, f"{describe_difference(mismatch)}; {case.why}"), "dim")
        for case in proof.cases
        if case.outcome == "outside"
        for mismatch in case.differences[:1]
    ]
    return table("Outside the contract", "<", rows, shown=3, rest="more", where="before")


def describe_difference(mismatch: Difference) -> str:
    """Return ``output: 1.5 instead of 1.0 at [0, 3], largest difference 0.5, 3 % of the elements``."""
    where = f"call {mismatch.call}, {mismatch.where}" if mismatch.call else mismatch.where
    if mismatch.kind == "gradient":
        return f"{where} {mismatch.after}"
    kind = f"{mismatch.kind} " if mismatch.kind in ("shape", "dtype", "device") else ""
    text = f"{where}: {kind}{mismatch.after} instead of {mismatch.before}"
    if mismatch.at:
        text += f" at [{', '.join(map(str, mismatch.at))}]"
    if mismatch.largest >= 0:
        text += f", largest difference {mismatch.largest:.3g}"
    if mismatch.share and mismatch.at:
        text += f", {'all' if mismatch.share == 1 else f'{100 * mismatch.share:.3g} %'} of the elements"
    if mismatch.largest >= 0 and (mismatch.rtol or mismatch.atol):
        text += f" (allowed: {mismatch.rtol:.2g} relative, {mismatch.atol:.2g} absolute)"
    return text


def _cases(proof: Proof) -> Table:
    """Return the outcome of each case."""

    def describe(case: CaseResult) -> str:
        return case.outcome + (f": {case.why}" if case.why else "")

    rows = [Row((case.name, describe(case)), _TONES.get(case.outcome, "dim")) for case in proof.cases]
    return table("Cases", "<", rows, shown=0)


def _costs(proof: Proof) -> Table:
    """Return syncs, operators, memory and estimated time of a call on both sides."""
    if not proof.costs:
        return two_sided_table("", [])
    before, after = proof.costs
    rows = [_measure("syncs", before.waits, after.waits)]
    if any(cost.first != cost.waits for cost in proof.costs):
        rows.append(_measure("  in the first call", before.first, after.first))
    rows.append(_measure("operators launched", before.operators, after.operators))
    rows.append(measure_row(Measure(name="peak memory", before=before.peak, after=after.peak, unit="bytes")))
    if before.estimate is not None and after.estimate is not None:
        for name, field in (("estimated time", "likely"), ("    at least", "least"), ("    at most", "most")):
            was, now = (getattr(side, field) for side in (before.estimate, after.estimate))
            rows.append(_measure(name, was, now, "ns"))
    return two_sided_table(f"Per call, on an emulated {proof.gpu}", rows)


def _measure(name: str, before: float, after: float, unit: str = "count") -> Row:
    """Return the row of a number on both sides."""
    return measure_row(Measure(name=name, before=before, after=after, unit=unit))  # type: ignore[arg-type]


def _times(proof: Proof) -> Table:
    """Return the measured times of a call on both sides."""
    if proof.time is None:
        return two_sided_table("", [])
    kind = "Time" if proof.time.clock == "GPU" else "CPU time"
    return two_sided_table(f"{kind} of a call, {proof.time.rounds} rounds", list(_timing_rows(proof.time)))


def _timing_rows(time: Timing) -> Iterator[Row]:
    """Yield medians with their 95 % bounds, in all, on the CPU and on the GPU."""
    for name, field in (("median", "total"), ("  on the CPU", "host"), ("  on the GPU", "device")):
        before, after = getattr(time.before, field), getattr(time.after, field)
        if before is None or after is None:
            continue
        yield _measure(name, before.median, after.median, "ns")
        yield _measure("    at least (95 %)", before.low, after.low, "ns")
        yield _measure("    at most (95 %)", before.high, after.high, "ns")


def _waits(proof: Proof) -> Table:
    """List where the original waits; where the new code waits is in its findings."""
    rows = [
        Row(
            (
                finding.line or finding.place,
                f"{finding.code} {finding.name}",
                rate(finding.frequency.per_step, "sync", "call"),
            )
        )
        for finding in (proof.costs[0].findings if proof.costs else ())
    ]
    return table("Where it synced before", "< | >", rows, shown=MAX_ROWS_SHOWN)


def _sweep(sweep: Sweep) -> Table:
    """Return the times for each value of a swept dimension."""
    longest = max(max(row.time.before.total.median, row.time.after.total.median) for row in sweep.rows)
    unit = scale(longest, least=1)
    clock = "time" if sweep.rows[0].time.clock == "GPU" else "CPU time"
    rows = []
    for row in sweep.rows:
        time = row.time
        faster = {"neither": "?"}.get(time.faster, time.faster) + ("" if row.same else ", not the same")
        sides = (unit(time.before.total.median), unit(time.after.total.median))
        around = f"{time.ratio.low:.2f}–{time.ratio.high:.2f}"
        tone: Tone = "" if row.same else "bad"
        rows.append(Row((str(row.value), *sides, f"{time.ratio.median:.2f}", around, faster), tone))
    title = f"{sweep.key}; {clock}, {unit.name}"
    columns = "before | after | ratio | 99 % | faster"
    return table(title, columns, rows, notes=tuple(_crossings(sweep)))


def _crossings(sweep: Sweep) -> Iterator[str]:
    """Yield where one side becomes faster than the other."""
    for crossing in sweep.crossings:
        yield (
            f"Above {sweep.key} = {crossing.value:.3g}, {crossing.faster} is faster; below it, the other one "
            f"(crossover between {crossing.low:g} and {crossing.high:g})"
        )
    if sweep.crossings:
        return
    sides = {row.time.faster for row in sweep.rows} - {"neither"}
    if sides:
        yield f"No crossover: {sides.pop()} is faster at every value with a measurable difference"
    else:
        yield "No measurable difference at any value"
