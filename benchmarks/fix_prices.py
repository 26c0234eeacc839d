"""What prices of fixes are worth: beside published gains, and beside the estimate of the changed code.

    python benchmarks/fix_prices.py            # prints the sheet
    python benchmarks/fix_prices.py --write    # … and keeps it

Published changes are those of `ranking.py` that remove syncs. The others are the cases with which the tests
follow each remedy (``tests/rules/remedies``): the step before and after, with so much work around it that the
CPU or the GPU limits it. The price is that of all syncs of the step before; the gain is the difference of
both steps' estimates, which know nothing of prices.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _sheet
import msgspec
import torch
from ranking import CHANGES, record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "rules"))
from following import PRELUDE, Followed, read_cases

from gapless.analyze.estimate.estimate import estimate
from gapless.analyze.estimate.together import ToPrice
from gapless.analyze.reports import report
from gapless.analyze.run.steps import find_steps
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Session
from gapless.model.programme import Entry
from gapless.model.wording import three_digits

REMEDIES = Path(__file__).resolve().parents[1] / "tests" / "rules" / "remedies"
ROWS, CASE_STEPS, CASES = 4096, 5, 1
"""Rows of a case, its steps, and how many cases of each file are tried, the first ones."""
CLOSE = 1.5
"""Factor within which a price is called close to the gain."""
_SMALL = Entry(
    name="aten::add", dtype="float32", inputs=((1000,),), outputs=((1000,),), tensors=1, elements=1000,
    reads=4000, writes=4000,
)  # fmt: skip
_LONG = msgspec.structs.replace(_SMALL, reads=90_000_000, writes=90_000_000)
AROUND = {"CPU": [_SMALL] * 100, "GPU": [_LONG] * 40}
"""Operators before and behind a case, by what then limits the step."""


class Compared(NamedTuple):
    """A change in microseconds: what it gains, the price of its syncs alone, the price of the fix and its
    interval, and the launches that go with the syncs."""

    name: str
    gain: float
    waits: float
    least: float
    fix: float
    most: float
    launches: float

    @property
    def inside(self) -> bool:
        return self.least <= self.gain <= self.most


def compare(name: str, before: Session, gain: float) -> Compared | None:
    """Price the syncs of `before`; None if they have no prices."""
    estimated = report(before).estimate
    alone = estimate(before, find_steps(before.marks), _all_sites(before))
    if estimated is None or alone is None or estimated.refused or not estimated.prices.each:
        return None
    saved = estimated.saved
    return Compared(
        name,
        gain / 1e3,
        alone.prices.all / 1e3,
        saved.least / 1e3,
        saved.likely / 1e3,
        saved.most / 1e3,
        sum(price.launches for price in estimated.prices.each),
    )


def _all_sites(session: Session) -> ToPrice:
    """Return every site of a session as one group, without what goes with it."""
    return ToPrice({0: range(len(session.sites))})


def step_length(session: Session) -> float:
    result = report(session).estimate
    assert result is not None
    assert not result.refused, result.refused
    return result.step.likely


# -- published changes -----------------------------------------------------------------------------------


def published() -> Iterator[tuple[Compared, float]]:
    """Yield the published changes that remove syncs, and their published gains in microseconds."""
    for change in CHANGES:
        before, after = (record(change, old) for old in (True, False))
        if before.sites:
            compared = compare(change.name, before, step_length(before) - step_length(after))
            if compared is not None:
                yield compared, 1e3 * (change.before - change.after)


# -- remedies --------------------------------------------------------------------------------------------


def followed() -> Iterator[tuple[str, Compared]]:
    """Yield the remedies that can be followed as a step, by what limits it."""
    for path in sorted(REMEDIES.glob("*.txt")):
        if path.stem == "not_run" or path.stem.startswith("gap8"):
            continue
        for number, case in enumerate(read_cases(path)[:CASES]):
            sides = [record_side(case, side) for side in ("before", "after")]
            if None in sides:
                continue
            name = f"{case.code or path.stem.upper()} {path.stem}:{number + 1}"
            for limit, around in AROUND.items():
                before, after = (with_work(side, around) for side in sides if side is not None)
                with contextlib.suppress(AssertionError):  # steps of another length, or none
                    compared = compare(name, before, step_length(before) - step_length(after))
                    if compared is not None:
                        yield limit, compared


def record_side(case: Followed, side: str) -> Session | None:
    """Return the session of a loop over one side of `case`; None if it fails at this size."""
    step = textwrap.indent(getattr(case, side), "    ")
    text = f"{PRELUDE}{case.setup}\nfor _ in range({CASE_STEPS}):\n{step}\n    gapless.step()\n"
    names: dict[str, Any] = {"__name__": "followed", "rows": ROWS, "dtype": torch.float32}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "train.py"
        path.write_text(text, encoding="utf-8")
        with Emulator(EmulatorOptions("a100", programme=True)) as emulator:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(text, str(path), "exec"), names)
            except Exception:
                return None
            return emulator.session()


def with_work(session: Session, around: Sequence[Entry]) -> Session:
    """Return `session` with further operators before and behind each of its steps."""
    programme = session.programme
    assert programme is not None
    number = len(programme.entries)
    more = tuple(number for _ in around)
    bodies = tuple((*more, *body, *more) for body in programme.bodies)
    entries = (*programme.entries, around[0])
    return msgspec.structs.replace(
        session, programme=msgspec.structs.replace(programme, entries=entries, bodies=bodies)
    )


# -- the sheet -------------------------------------------------------------------------------------------


def summary(limit: str, rows: Sequence[Compared]) -> list[object]:
    """Return how close prices are to gains: those of syncs alone, and of fixes."""
    gaining = [row for row in rows if row.gain > 0]
    close = [sum(_is_close(price(row), row.gain) for row in gaining) for price in _PRICES]
    ratios = [statistics.median(price(row) / row.gain for row in gaining) for price in _PRICES]
    inside = sum(row.inside for row in rows)
    return [limit, len(rows), len(gaining), *close, *(f"{ratio:.2f}" for ratio in ratios), inside]


_PRICES = (lambda row: row.waits, lambda row: row.fix)


def _is_close(price: float, gain: float) -> bool:
    return gain / CLOSE <= price <= gain * CLOSE


def sheet(_: argparse.Namespace) -> str:
    """Return the sheet."""
    text = _sheet.header(
        "Prices of fixes",
        "python benchmarks/fix_prices.py --write",
        "prices of all syncs of a step together, in µs, beside what the change gains: published gains with "
        f"the estimates of `ranking.py`; and the first case of each file of remedies that the tests "
        f"follow, with {ROWS} rows in float32 on an emulated A100 (a CPU of usual speed), with operators "
        "around it so that the CPU or the GPU limits the step. A gain is the difference of the estimates of "
        "both steps; a price knows only the step before. No constant was fitted to any of them",
    )
    columns = ["change", "gain, published", "gain, estimated", "syncs alone", "fix", "interval", "launches"]
    text += _sheet.table(
        columns,
        [
            [row.name, three_digits(theirs), *map(three_digits, (row.gain, row.waits, row.fix)),
             f"{three_digits(row.least)}–{three_digits(row.most)}", three_digits(row.launches)]
            for row, theirs in published()
        ],
    )  # fmt: skip
    rows = list(followed())
    text += f"\n## Remedies, followed\n\nClose: within a factor of {CLOSE} of the gain.\n\n"
    columns = ["limited by", "changes", "that gain", "syncs alone: close", "fix: close",
               "syncs alone / gain, median", "fix / gain, median", "gain in the interval"]  # fmt: skip
    text += _sheet.table(
        columns, [summary(limit, [row for name, row in rows if name == limit]) for limit in AROUND]
    )
    columns = ["remedy", "limited by", "gain", "syncs alone", "fix", "interval", "launches", "inside"]
    return f"{text}\n" + _sheet.table(
        columns,
        [
            [row.name, limit, *(f"{value:.0f}" for value in (row.gain, row.waits, row.fix)),
             f"{row.least:.0f}–{row.most:.0f}", f"{row.launches:.3g}", "yes" if row.inside else "no"]
            for limit, row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    _sheet.main("fix_prices", __doc__, sheet)
