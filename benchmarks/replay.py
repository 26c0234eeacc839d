"""How well an unchanged replay meets real profiles, and how long pricing takes.

    python benchmarks/replay.py FOLDER            # every profile in it with 50 or more device operations
    python benchmarks/replay.py FOLDER --write    # writes benchmarks/sheets/replay.md
    python benchmarks/replay.py FOLDER --copies 5 # and the largest five times in one file, for speed
    python benchmarks/replay.py FOLDER --programs OTHERS --runs OTHERS  # and profiles it was not built on

What was built on FOLDER is expected to fit it. `--programs` names a folder of profiles of other programs,
`--runs` one of other runs of programs in FOLDER; `LOOKED_AT` are those of them that were looked at one by one
since, and count as built on. Of what comes new, **kept aside** are those whose name's SHA-256 begins with 0
to 7: they are measured here and looked at by nobody, whatever comes out.

For each profile the four measures of `gapless.replay.fidelity`; for what misses one, why. Then what all
waits together would save, what takes most of the time before and after, and how long building the model,
one replay and the prices of all groups took (waits grouped by the two innermost operators around them).
Exits with 1 when a profile misses that is not listed as known.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _sheet

from gapless.analyze.profile.coverage import judge_coverage
from gapless.analyze.profile.trace_steps import find_steps, main_device
from gapless.errors import UnreadableInput
from gapless.replay.change import Change
from gapless.replay.fidelity import DRIFT, EXPLAINED, LEAST_WORK, SPAN, Fidelity, fidelity
from gapless.replay.model import Model, build
from gapless.replay.price import Prices, prices
from gapless.trace.read import read
from gapless.trace.timeline import HostKind, Timeline

WAIT_ERROR = 0.1
PAIRS = (("c14b", "41e7", "waits"), ("9b36", "288e", "input"))
"""Profiles before and after a change, by the ends of their names, and what was changed."""


BUILT, PROGRAMS, ASIDE, RUNS = "built on", "other programs", "of these kept aside", "other runs"
LOOKED_AT = ("7e6b", "0480", "658a")
"""Profiles of other programs, by the ends of their names, that the replay has been mended for."""


def bare(name: str) -> str:
    """The name without its extension."""
    return re.sub(r"\.(pt\.trace\.)?json(\.gz)?$", "", name)


def kept_aside(name: str) -> bool:
    """Whether nobody looks at the profile of this name but this program."""
    return hashlib.sha256(bare(name).encode()).hexdigest()[0] in "01234567"


@dataclass(frozen=True)
class Measured:
    """One profile, replayed and priced; `whole`: enough is there for prices to be given at all."""

    name: str
    whole: bool
    model: Model
    fidelity: Fidelity
    prices: Prices[str]
    decode: float
    building: float
    replaying: float
    pricing: float


def grouped(timeline: Timeline, model: Model) -> dict[str, list[int]]:
    """The waits, by the two innermost operators around them."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for row in model.waits.host.tolist():
        around = [r for r in timeline.with_ancestors(row)[1:] if timeline.host.kind[r] == HostKind.OPERATOR][
            :2
        ]
        groups[" in ".join(timeline.names[timeline.host.name[r]] for r in around)].append(row)
    return dict(groups)


def complete(timeline: Timeline) -> bool:
    """Whether enough is in the profile to be explained."""
    device = main_device(timeline)
    return judge_coverage(timeline, device, find_steps(timeline, device)).complete


def measure(path: Path) -> Measured | None:
    """Replays and prices one profile; None where it shows too little device work."""
    begin = time.perf_counter()
    try:
        timeline = read(path)
    except UnreadableInput:
        return None
    decoded = time.perf_counter()
    if len(timeline.work) < LEAST_WORK:
        return None
    model = build(timeline)
    built = time.perf_counter()
    if not isinstance(model, Model):
        return None
    outcome = model.replay()
    replayed = time.perf_counter()
    groups = grouped(timeline, model)
    grouping = time.perf_counter()
    found = prices(model, groups)
    done = time.perf_counter()
    return Measured(
        path.name, complete(timeline), model, fidelity(model, outcome), found, decoded - begin,
        built - decoded, replayed - built, done - grouping,
    )  # fmt: skip


def misses(one: Measured) -> Iterator[str]:
    """What is too far off, and why as far as the profile tells."""
    seen, model = one.fidelity, one.model
    blocked = int(model.waits.blocked.sum())
    share = blocked / max(model.recorded, 1)
    small = f"all waits together are {blocked / 1e6:.3f} ms, {share:.2%} of the span"
    if abs(seen.span_error) > SPAN:
        yield f"span {seen.span_error:+.2%}"
    if seen.drift > DRIFT:
        yield f"drift {seen.drift:.2%}"
    if seen.blocked and seen.explained < EXPLAINED:
        idle = int((model.waits.work < 0).sum())
        why = f"; {idle} wait for nothing that the profile shows" if idle else ""
        yield f"explained {seen.explained:.0%}: mostly calls with nothing to wait for{why}; {small}"
    if seen.wait_error > WAIT_ERROR:
        yield f"median wait error {seen.wait_error:.0%} of {seen.waits} waits; {small}"


def percent(value: float) -> str:
    return "–" if value < 0 else f"{value:.1%}"


def row(one: Measured) -> list[object]:
    """One line of the sheet."""
    seen, found = one.fidelity, one.prices
    return [
        short(one.name), len(one.model.timeline.work), f"{one.model.recorded / 1e6:.1f}",
        f"{seen.span_error:+.2%}", f"{seen.drift:.2%}",
        percent(seen.explained if seen.blocked else -1),
        f"{percent(seen.wait_error)} ({seen.waits})", f"{int(one.model.waits.blocked.sum()) / 1e6:.2f}",
        f"{found.all / 1e6:.2f}", f"{found.limiter} → {found.remains}",
    ]  # fmt: skip


def short(name: str) -> str:
    """The name without its extension, its middle left out."""
    whole = bare(name)
    return whole if len(whole) <= 48 else f"{whole[:30]}…{whole[-16:]}"


def speed(found: list[Measured]) -> str:
    """How long the largest took."""
    largest = sorted(found, key=lambda one: -len(one.model.timeline.work))[:5]
    columns = ["profile", "host rows", "device rows", "waits", "nodes", "groups", "decode s", "build s",
               "one replay s", "all prices s"]  # fmt: skip
    rows: list[list[object]] = [
        [short(one.name), len(one.model.timeline.host), len(one.model.timeline.work), len(one.model.waits),
         one.model.graph.count, len(one.prices.each), f"{one.decode:.2f}", f"{one.building:.2f}",
         f"{one.replaying:.3f}", f"{one.pricing:.2f}"]
        for one in largest
    ]  # fmt: skip
    return "## Speed\n\n" + _sheet.table(columns, rows) + "\n"


def pairs(found: list[Measured]) -> str:
    """Profiles before and after a change."""
    columns = ["before", "after", "change", "before ms", "predicted ms", "after ms"]
    rows: list[list[object]] = []
    for before, after, change in PAIRS:
        one = next((m for m in found if before in m.name), None)
        two = next((m for m in found if after in m.name), None)
        if one is None or two is None:
            continue
        now = one.prices.span
        then = now - one.prices.all if change == "waits" else one.model.replay(Change(input_free=True)).span
        what = {"waits": "all waits removed", "input": "input free"}[change]
        rows.append([short(one.name), short(two.name), what, *(f"{v / 1e6:.0f}" for v in (now, then)),
                     f"{two.model.recorded / 1e6:.0f}"])  # fmt: skip
    note = (
        "Not the same program in both: the second of the first pair also computes something else and still "
        "waits; the second of the second pair loads with workers and was taken at another time. They show "
        "that the prediction goes the right way, not how exact it is.\n\n"
    )
    return "## Before and after\n\n" + note + _sheet.table(columns, rows) + "\n" if rows else ""


def repeated(path: Path, times: int, into: Path) -> Path:
    """A profile several times in a row in one file: times and ids moved on for each copy."""
    with gzip.open(path) as source:
        document = json.load(source)
    events = [event for event in document["traceEvents"] if event.get("ph") != "M"]
    starts = [event["ts"] for event in events if event.get("ph") == "X" and event["ts"] > 0]
    length = max(starts) - min(starts) + 100_000
    document["traceEvents"] = [moved(event, n, length) for n in range(times) for event in events]
    target = into / f"{times}-times-{path.name.removesuffix('.gz')}"
    target.write_text(json.dumps(document))
    return target


def moved(event: dict[str, Any], times: int, length: float) -> dict[str, Any]:
    """An event of the copy number `times`."""
    event = {**event, "ts": event["ts"] + times * length}
    if "args" in event:
        event["args"] = dict(event["args"])
    for holder in (event, event.get("args", {})):
        for key in ("id", "correlation", "External id", "external id"):
            if isinstance(holder.get(key), int):
                holder[key] += times * 100_000_000
    return event


def sets(built: list[Measured], programs: list[Measured], runs: list[Measured]) -> dict[str, list[Measured]]:
    """The profiles by what they can say: those that are whole, and whether the replay was built on them."""
    seen = [one for one in programs if bare(one.name).endswith(LOOKED_AT)]
    others = [one for one in programs if one not in seen]
    found = {
        BUILT: built + seen,
        PROGRAMS: others,
        ASIDE: [one for one in others if kept_aside(one.name)],
        RUNS: runs,
    }
    return {name: [one for one in some if one.whole] for name, some in found.items() if some}


def summary(of: dict[str, list[Measured]]) -> str:
    """How many of each set meet each measure."""

    def count(test: Callable[[Measured], bool], among: Callable[[Measured], bool]) -> list[str]:
        counted = [[one for one in some if among(one)] for some in of.values()]
        return [f"{sum(map(test, some))} of {len(some)}" for some in counted]

    def every(one: Measured) -> bool:
        return True

    worst = [max(abs(one.fidelity.span_error) for one in some) for some in of.values()]
    total = [sum(one.fidelity.blocked for one in some) for some in of.values()]
    known = [sum(one.fidelity.explained * one.fidelity.blocked for one in some) for some in of.values()]
    rows: list[list[object]] = [
        [f"span within {SPAN:.0%}", *count(lambda one: abs(one.fidelity.span_error) <= SPAN, every)],
        ["the worst", *(f"{value:.2%}" for value in worst)],
        [f"drift within {DRIFT:.0%}", *count(lambda one: one.fidelity.drift <= DRIFT, every)],
        [f"at least {EXPLAINED:.0%} of the blocked time explained",
         *count(lambda one: one.fidelity.explained >= EXPLAINED, lambda one: one.fidelity.blocked > 0)],
        ["of all blocked time", *(f"{part / max(all_, 1):.1%} of {all_ / 1e9:.2f} s"
                                  for part, all_ in zip(known, total, strict=True))],
        [f"median error of derived waits within {WAIT_ERROR:.0%}",
         *count(lambda one: one.fidelity.wait_error <= WAIT_ERROR, lambda one: one.fidelity.waits > 0)],
        ["**trusted**", *count(lambda one: one.fidelity.trusted, every)],
        ["span within 1% where trusted",
         *count(lambda one: abs(one.fidelity.span_error) <= 0.01, lambda one: one.fidelity.trusted)],
    ]  # fmt: skip
    return _sheet.table(["measure", *of], rows) + "\n"


def sheet(of: dict[str, list[Measured]], found: list[Measured], folder: str) -> str:
    """The whole sheet: `of` the sets of whole profiles, `found` every profile."""
    missed = {one.name: list(misses(one)) for one in found if one.whole}
    method = (
        "each profile with 50 or more device operations is replayed unchanged, with the ends of its waits "
        "derived from what they wait for, and compared with itself; then every group of waits is priced"
    )
    text = _sheet.header("Replay of real profiles", f"python benchmarks/replay.py {folder} --write", method)
    lacking = [short(one.name) for one in found if not one.whole]
    text += summary(of)
    text += (
        "Trusted: prices are numbers, not bounds. Drift: the 95th percentile of how far device work begins "
        "from where it began, as a share of the span. Kept aside, by a hash of their names, are profiles "
        "that nobody looks at. The others are from the repositories AMD-AGI/TraceLens, "
        "facebookresearch/HolisticTraceAnalysis, pytorch/torchrec, pytorch/kineto and "
        "pytorch-labs/segment-anything-fast; their names are those of the files there.\n"
    )
    if lacking:
        text += f"\nNot counted, as evidence is missing and nothing is priced: {', '.join(lacking)}.\n"
    columns = ["profile", "device rows", "span ms", "span error", "drift", "explained", "wait error (waits)",
               "blocked ms", "all waits save ms", "limiter → without waits"]  # fmt: skip
    for name, some in of.items():
        if name != ASIDE:
            rows = [row(one) for one in some]
            text += f"\n## {name[:1].upper()}{name[1:]}\n\n{_sheet.table(columns, rows)}"
    lines = [f"- {short(name)}: {'; '.join(why)}" for name, why in missed.items() if why]
    text += "\n## Misses\n\n" + ("\n".join(lines) or "None.") + "\n\n"
    return text + pairs(found)


def measured(folder: Path | None) -> list[Measured]:
    """Every profile of a folder that shows enough."""
    paths = sorted(folder.iterdir()) if folder is not None else []
    found = [measure(path) for path in paths if path.name.endswith((".json", ".json.gz"))]
    return [one for one in found if one is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=Path, help="profiles of programs it was not built on")
    parser.add_argument("--runs", type=Path, help="other runs of the programs in FOLDER")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--copies", type=int, default=0)
    options = parser.parse_args()
    built, programs, runs = (measured(folder) for folder in (options.folder, options.programs, options.runs))
    found = built + programs + runs
    text = sheet(sets(built, programs, runs), found, options.folder.name)
    if options.copies:
        largest = max(found, key=lambda one: len(one.model.timeline.work)).name
        with tempfile.TemporaryDirectory() as into:
            big = measure(repeated(options.folder / largest, options.copies, Path(into)))
        found += [big] if big else []
    text += speed(found)
    print(text)
    if options.write:
        print(_sheet.write("replay", text))
    off = [
        one.name
        for one in found
        if one.whole and (abs(one.fidelity.span_error) > SPAN or one.fidelity.drift > DRIFT)
    ]
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
