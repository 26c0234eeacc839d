"""Syncs that others removed by hand, and what `gapless check` without a GPU says of the code before.

    python benchmarks/pull_requests.py --checkouts FOLDER            # print the sheet
    python benchmarks/pull_requests.py --checkouts FOLDER --write    # … and keep it in benchmarks/sheets

FOLDER holds clones of the repositories, bare or not, by their names, and unpacked wheels of packages, by
name and version (``libreyolo-1.4.0``); what is absent is left out, and so is what lacks a library that it
imports. What was recorded is kept in `build/pull_requests` and reported anew each time: remove that folder
where emulation has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import _sheet
from _pull_requests import CASES, Case
from origins import IN_STEPS, SCRIPTS, count_findings, grouping_rows, without_causes

from gapless.analyze.reports import report
from gapless.errors import UnreadableInput
from gapless.model import Finding, Report, Session
from gapless.model.session import load

FOLDER = _sheet.HERE.parent / "build" / "pull_requests"
LIMIT_SECONDS = 600


class Gain(NamedTuple):
    """What a change is predicted to save, in milliseconds or percent of a step."""

    least: float
    likely: float
    most: float

    def __str__(self) -> str:
        return f"{self.likely:.3g} ({self.least:.2g}–{self.most:.3g})"


class Named(NamedTuple):
    """A place that was changed, and the finding that names it, if there is one."""

    place: str
    how: str
    finding: Finding | None

    def __str__(self) -> str:
        if self.finding is None:
            return f"`{self.place}`: {self.how}"
        return f"`{self.place}`: {self.how} ({self.finding.code}, {self.finding.frequency.per_step:.0f}×)"


def extract(case: Case, checkouts: Path) -> Path | None:
    """Return the folder to import the code before the change from; None if its source is absent."""
    source = checkouts / case.source
    if not source.exists():
        return None
    if case.packaged:
        return source
    target = FOLDER / f"{case.name}-{case.before[:9]}"
    for part in case.parts:
        if not (target / part).exists():
            extract_part(source, f"{case.before}:{part}", target / part)
    return target / "src" if case.parts == ("src",) else target


def extract_part(source: Path, name: str, target: Path) -> None:
    """Write what git calls `name` in the repository `source`, a folder or a file, to `target`."""
    is_file = target.suffix == ".py"
    words = ["show", name] if is_file else ["archive", name]
    content = subprocess.run(["git", "-C", str(source), *words], capture_output=True, check=True).stdout
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_file:
        target.write_bytes(content)
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        files.extractall(target, [member for member in files if member.isfile()], filter="data")


def session_of(case: Case, code: Path) -> Session | None:
    """Return what a check of the code before recorded; None if it did not come to a step."""
    saved = FOLDER / f"{case.name}-{case.number}.gapless.json"
    if not saved.exists():
        script, *words = case.script.split()
        command = [sys.executable, "-m", "gapless", "check", "-q", "--no-loader", "--host", "usual"]
        command += [
            *case.options.split(),
            "--own",
            str(code),
            "-o",
            str(saved),
            str(_sheet.HERE / script),
            *words,
        ]
        paths = os.pathsep.join((str(code), str(_sheet.HERE.parent / "src")))
        print(f"{case.name} #{case.number} …", file=sys.stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):  # saves nothing, and is left out
            subprocess.run(
                command, capture_output=True, check=False, timeout=LIMIT_SECONDS, cwd=FOLDER,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
    try:
        session = load(saved)
    except UnreadableInput:
        return None
    return session if session.marks else None


def named(place: str, findings: list[Finding]) -> Named:
    """Return how a place that was changed is named: as a finding's line, one of its lines, or a caller."""

    def is_here(line: object) -> bool:
        return line is not None and f"{Path(line.file).name}:{line.line}" == place

    ways = (
        ("its line", lambda finding: is_here(finding.line)),
        ("one of its lines", lambda finding: any(map(is_here, finding.lines))),
        ("its evidence", lambda finding: any(place in text for text in finding.evidence)),
        ("its caller", lambda finding: any(is_here(line) for site in finding.sites for line in site.stack)),
    )
    for how, names in ways:
        for finding in findings:
            if names(finding):
                return Named(place, how, finding)
    return Named(place, "not named", None)


def gain_of(case: Case, summary: Report, places: list[Named]) -> Gain | None:
    """Return what the findings that name the changed places are predicted to save together."""
    prices = [
        finding.price
        for number, finding in enumerate(place.finding for place in places)
        if finding is not None and finding.price is not None
        and finding not in [earlier.finding for earlier in places[:number]]
    ]  # fmt: skip
    if summary.estimate is None or not prices:
        return None
    unit = 1e6 if case.alone else summary.estimate.step.likely / 100
    return Gain(
        max(price.least_alone for price in prices) / unit,
        sum(price.alone for price in prices) / unit,
        sum(max(price.most_alone, price.most_last) for price in prices) / unit,
    )


def row(case: Case, session: Session) -> list[object]:
    summary = report(session)
    findings = [finding for finding in summary.findings if finding.frequency.when in IN_STEPS]
    places = [named(place, findings) for place in case.changed]
    lines = {site.line and (site.line.file, site.line.line) for finding in findings for site in finding.sites}
    return [
        case.link, case.syncs, f"{sum(finding.frequency.per_step for finding in findings):.0f}",
        "; ".join(map(str, places)), f"{sum(place.finding is not None for place in places)} of {len(places)}",
        f"{len(lines)} → {count_findings(without_causes(session))} → {len(findings)}",
        *gain_cells(case, gain_of(case, summary, places)), case.note or "–",
    ]  # fmt: skip


def gain_cells(case: Case, gain: Gain | None) -> tuple[str, str, str]:
    """Return their gain, the predicted one, and whether theirs is in its interval."""
    unit = "ms" if case.alone else "%"
    predicted = "–" if gain is None else f"{gain} {unit}"
    if case.gain is None:
        return "–", predicted, "–"
    scale = 1 if case.alone else 100 / case.step
    theirs, spread = case.gain * scale, case.spread * scale
    about = f" ± {spread:g}" if spread else ""
    inside = gain is not None and gain.least <= theirs + spread and theirs - spread <= gain.most
    return f"{theirs:.3g}{about} {unit}", predicted, "yes" if inside else "no"


def sheet(options: argparse.Namespace) -> str:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows, absent = [], []
    for case in CASES:
        code = extract(case, Path(options.checkouts).resolve())
        session = None if code is None else session_of(case, code)
        if session is None:
            absent.append(
                f"{case.name} #{case.number} ({'absent' if code is None else 'did not reach a step'})"
            )
        else:
            rows.append(row(case, session))
    text = _sheet.header(
        "What engineers with GPUs removed by hand, and what a check without one says",
        "python benchmarks/pull_requests.py --checkouts FOLDER --write",
        "the code before each pull request under `gapless check --host usual`, with random weights on made "
        "data; theirs by CUPTI, Nsight, the debug mode or a clock on real GPUs. Gains of a pull request that "
        "changed several findings: from the least of the dearest alone to the most of all together",
    )
    text += _sheet.table(
        ["pull request", "syncs a step, theirs", "ours, before", "changed places, as findings name them",
         "named", "lines → findings without causes → with", "gain, theirs", "predicted", "inside", "note"],
        rows,
    )  # fmt: skip
    causes = sum(": not named" not in str(cells[3]).split(";")[0] for cells in rows)
    complete = sum(len(set(str(cells[4]).split(" of "))) == 1 for cells in rows)
    timed = [cells[8] for cells in rows if cells[8] != "–"]
    text += (
        f"\nThe cause, the first place, is named in {causes} of {len(rows)}, every changed place in "
        f"{complete}; the gain is in the interval in {timed.count('yes')} of {len(timed)} that give one.\n"
    )
    text += f"\nLeft out: {', '.join(absent)}.\n" if absent else ""
    return text + (field_scripts() if options.field else "")


def field_scripts() -> str:
    """Return how many findings the scripts of the field tests have, without and with their causes."""
    rows = grouping_rows(sorted(SCRIPTS.glob("*.py")))
    before, after = (sum(int(str(row[at])) for row in rows) for at in (1, 2))
    names = ", ".join(f"{row[0]} {row[1]} → {row[2]}" for row in rows if row[1] != row[2]) or "none"
    return (
        f"\nIn steps of {len(rows)} scripts in `tests/field/scripts`, which are no pull requests: {before} "
        f"findings without causes, {after} with; those that differ: {names}.\n"
    )


if __name__ == "__main__":
    _sheet.main(
        "pull_requests",
        __doc__ or "",
        sheet,
        checkouts={"default": "checkouts", "help": "the folder with clones and unpacked wheels"},
        field={"action": "store_true", "default": False, "help": "count the field scripts' findings, too"},
    )
