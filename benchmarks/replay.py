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
from gapless.replay.change import ReplayChange
from gapless.replay.fidelity import (
    MAX_DRIFT,
    MAX_SPAN_ERROR,
    MIN_EXPLAINED,
    MIN_OPERATIONS,
    ReplayFidelity,
    measure_fidelity,
)
from gapless.replay.model import ReplayModel, build
from gapless.replay.price import GroupPrices, price_groups
from gapless.trace.read import read
from gapless.trace.timeline import HostKind, Timeline

MAX_WAIT_ERROR = 0.1
PAIRS = (("c14b", "41e7", "waits"), ("9b36", "288e", "input"))
"""Profiles before and after a change (ends of their names), and what changed."""


BUILT, PROGRAMS, ASIDE, RUNS = "built on", "other programs", "of these kept aside", "other runs"
LOOKED_AT = ("7e6b", "0480", "658a")
"""Profiles of other programs (ends of their names) that the replay was mended for."""


def bare_name(name: str) -> str:
    """Return the file name without its extension."""
    return re.sub(r"\.(pt\.trace\.)?json(\.gz)?$", "", name)


def is_kept_aside(name: str) -> bool:
    """Whether only this script looks at the profile of this name."""
    return hashlib.sha256(bare_name(name).encode()).hexdigest()[0] in "01234567"


@dataclass(frozen=True)
class Measured:
    """One profile, replayed and priced; `whole` if it holds enough to be priced."""

    name: str
    whole: bool
    model: ReplayModel
    fidelity: ReplayFidelity
    prices: GroupPrices[str]
    decode: float
    building: float
    replaying: float
    pricing: float


def group_waits(timeline: Timeline, model: ReplayModel) -> dict[str, list[int]]:
    """Return the waits by the two innermost operators around them."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for row in model.waits.host.tolist():
        around = [r for r in timeline.with_ancestors(row)[1:] if timeline.host.kind[r] == HostKind.OPERATOR][
            :2
        ]
        groups[" in ".join(timeline.names[timeline.host.name[r]] for r in around)].append(row)
    return dict(groups)


def is_complete(timeline: Timeline) -> bool:
    """Whether the profile holds enough to be explained."""
    device = main_device(timeline)
    return judge_coverage(timeline, device, find_steps(timeline, device)).complete


def measure(path: Path) -> Measured | None:
    """Replay and price one profile; None if it has too little device work."""
    begin = time.perf_counter()
    try:
        timeline = read(path)
    except UnreadableInput:
        return None
    decoded = time.perf_counter()
    if len(timeline.work) < MIN_OPERATIONS:
        return None
    model = build(timeline)
    built = time.perf_counter()
    if not isinstance(model, ReplayModel):
        return None
    outcome = model.replay()
    replayed = time.perf_counter()
    groups = group_waits(timeline, model)
    grouping = time.perf_counter()
    priced = price_groups(model, groups)
    done = time.perf_counter()
    return Measured(
        path.name, is_complete(timeline), model, measure_fidelity(model, outcome), priced, decoded - begin,
        built - decoded, replayed - built, done - grouping,
    )  # fmt: skip


def misses(profile: Measured) -> Iterator[str]:
    """Yield what is too far off, and why as far as the profile shows."""
    agreement, model = profile.fidelity, profile.model
    blocked = int(model.waits.blocked.sum())
    share = blocked / max(model.recorded, 1)
    small = f"all waits together are {blocked / 1e6:.3f} ms, {share:.2%} of the span"
    if abs(agreement.span_error) > MAX_SPAN_ERROR:
        yield f"span {agreement.span_error:+.2%}"
    if agreement.drift > MAX_DRIFT:
        yield f"drift {agreement.drift:.2%}"
    if agreement.blocked and agreement.explained < MIN_EXPLAINED:
        idle = int((model.waits.work < 0).sum())
        why = f"; {idle} wait for nothing that the profile shows" if idle else ""
        yield f"explained {agreement.explained:.0%}: mostly calls with nothing to wait for{why}; {small}"
    if agreement.wait_error > MAX_WAIT_ERROR:
        yield f"median wait error {agreement.wait_error:.0%} of {agreement.waits} waits; {small}"


def percent(value: float) -> str:
    return "–" if value < 0 else f"{value:.1%}"


def row(profile: Measured) -> list[object]:
    """Return one line of the sheet."""
    agreement, priced = profile.fidelity, profile.prices
    return [
        shorten_name(profile.name), len(profile.model.timeline.work), f"{profile.model.recorded / 1e6:.1f}",
        f"{agreement.span_error:+.2%}", f"{agreement.drift:.2%}",
        percent(agreement.explained if agreement.blocked else -1),
        f"{percent(agreement.wait_error)} ({agreement.waits})",
        f"{int(profile.model.waits.blocked.sum()) / 1e6:.2f}",
        f"{priced.all / 1e6:.2f}", f"{priced.limiter} → {priced.remains}",
    ]  # fmt: skip


def shorten_name(name: str) -> str:
    """Return the name without extension, shortened in the middle."""
    whole = bare_name(name)
    return whole if len(whole) <= 48 else f"{whole[:30]}…{whole[-16:]}"


def speed(profiles: list[Measured]) -> str:
    """Return the table of times of the largest profiles."""
    largest = sorted(profiles, key=lambda profile: -len(profile.model.timeline.work))[:5]
    columns = ["profile", "host rows", "device rows", "waits", "nodes", "groups", "decode s", "build s",
               "one replay s", "all prices s"]  # fmt: skip
    rows: list[list[object]] = [
        [shorten_name(profile.name), len(profile.model.timeline.host), len(profile.model.timeline.work),
         len(profile.model.waits), profile.model.graph.count, len(profile.prices.each),
         f"{profile.decode:.2f}", f"{profile.building:.2f}",
         f"{profile.replaying:.3f}", f"{profile.pricing:.2f}"]
        for profile in largest
    ]  # fmt: skip
    return "## Speed\n\n" + _sheet.table(columns, rows) + "\n"


def pairs(profiles: list[Measured]) -> str:
    """Compare profiles before and after a change."""
    columns = ["before", "after", "change", "before ms", "predicted ms", "after ms"]
    rows: list[list[object]] = []
    for before, after, change in PAIRS:
        first = next((m for m in profiles if before in m.name), None)
        two = next((m for m in profiles if after in m.name), None)
        if first is None or two is None:
            continue
        now = first.prices.span
        then = (
            now - first.prices.all
            if change == "waits"
            else first.model.replay(ReplayChange(input_free=True)).span
        )
        change_text = {"waits": "all waits removed", "input": "input free"}[change]
        rows.append([shorten_name(first.name), shorten_name(two.name), change_text,
                     *(f"{v / 1e6:.0f}" for v in (now, then)),
                     f"{two.model.recorded / 1e6:.0f}"])  # fmt: skip
    note = (
        "Not the same program in both: the second of the first pair also computes something else and still "
        "waits; the second of the second pair loads with workers and was taken at another time. They show "
        "that the prediction goes the right way, not how exact it is.\n\n"
    )
    return "## Before and after\n\n" + note + _sheet.table(columns, rows) + "\n" if rows else ""


def repeat_profile(path: Path, times: int, into: Path) -> Path:
    """Write a profile several times in a row into one file, with times and ids moved for each copy."""
    with gzip.open(path) as source:
        document = json.load(source)
    events = [event for event in document["traceEvents"] if event.get("ph") != "M"]
    starts = [event["ts"] for event in events if event.get("ph") == "X" and event["ts"] > 0]
    length = max(starts) - min(starts) + 100_000
    document["traceEvents"] = [move_event(event, n, length) for n in range(times) for event in events]
    target = into / f"{times}-times-{path.name.removesuffix('.gz')}"
    target.write_text(json.dumps(document))
    return target


def move_event(event: dict[str, Any], times: int, length: float) -> dict[str, Any]:
    """Return the event in copy number `times`."""
    event = {**event, "ts": event["ts"] + times * length}
    if "args" in event:
        event["args"] = dict(event["args"])
    for holder in (event, event.get("args", {})):
        for key in ("id", "correlation", "External id", "external id"):
            if isinstance(holder.get(key), int):
                holder[key] += times * 100_000_000
    return event


def sets(built: list[Measured], programs: list[Measured], runs: list[Measured]) -> dict[str, list[Measured]]:
    """Return the complete profiles by set: whether the replay was built on them."""
    examined = [profile for profile in programs if bare_name(profile.name).endswith(LOOKED_AT)]
    unexamined = [profile for profile in programs if profile not in examined]
    by_set = {
        BUILT: built + examined,
        PROGRAMS: unexamined,
        ASIDE: [profile for profile in unexamined if is_kept_aside(profile.name)],
        RUNS: runs,
    }
    return {name: [profile for profile in some if profile.whole] for name, some in by_set.items() if some}


def summary(of: dict[str, list[Measured]]) -> str:
    """Return a table of how many of each set meet each measure."""

    def count(test: Callable[[Measured], bool], among: Callable[[Measured], bool]) -> list[str]:
        counted = [[profile for profile in some if among(profile)] for some in of.values()]
        return [f"{sum(map(test, some))} of {len(some)}" for some in counted]

    def every(profile: Measured) -> bool:
        return True

    worst = [max(abs(profile.fidelity.span_error) for profile in some) for some in of.values()]
    total = [sum(profile.fidelity.blocked for profile in some) for some in of.values()]
    explained = [
        sum(profile.fidelity.explained * profile.fidelity.blocked for profile in some) for some in of.values()
    ]
    rows: list[list[object]] = [
        [f"span within {MAX_SPAN_ERROR:.0%}",
         *count(lambda profile: abs(profile.fidelity.span_error) <= MAX_SPAN_ERROR, every)],
        ["the worst", *(f"{value:.2%}" for value in worst)],
        [f"drift within {MAX_DRIFT:.0%}", *count(lambda profile: profile.fidelity.drift <= MAX_DRIFT, every)],
        [f"at least {MIN_EXPLAINED:.0%} of the blocked time explained",
         *count(lambda profile: profile.fidelity.explained >= MIN_EXPLAINED,
                lambda profile: profile.fidelity.blocked > 0)],
        ["of all blocked time", *(f"{part / max(all_, 1):.1%} of {all_ / 1e9:.2f} s"
                                  for part, all_ in zip(explained, total, strict=True))],
        [f"median error of derived waits within {MAX_WAIT_ERROR:.0%}",
         *count(lambda profile: profile.fidelity.wait_error <= MAX_WAIT_ERROR,
                lambda profile: profile.fidelity.waits > 0)],
        ["**trusted**", *count(lambda profile: profile.fidelity.trusted, every)],
        ["span within 1% where trusted",
         *count(lambda profile: abs(profile.fidelity.span_error) <= 0.01,
                lambda profile: profile.fidelity.trusted)],
    ]  # fmt: skip
    return _sheet.table(["measure", *of], rows) + "\n"


def sheet(of: dict[str, list[Measured]], profiles: list[Measured], folder: str) -> str:
    """Return the sheet: `of` are the sets of complete profiles, the other argument has every profile."""
    missed = {profile.name: list(misses(profile)) for profile in profiles if profile.whole}
    method = (
        "each profile with 50 or more device operations is replayed unchanged, with the ends of its waits "
        "derived from what they wait for, and compared with itself; then every group of waits is priced"
    )
    text = _sheet.header("Replay of real profiles", f"python benchmarks/replay.py {folder} --write", method)
    lacking = [shorten_name(profile.name) for profile in profiles if not profile.whole]
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
            rows = [row(profile) for profile in some]
            text += f"\n## {name[:1].upper()}{name[1:]}\n\n{_sheet.table(columns, rows)}"
    lines = [f"- {shorten_name(name)}: {'; '.join(why)}" for name, why in missed.items() if why]
    text += "\n## Misses\n\n" + ("\n".join(lines) or "None.") + "\n\n"
    return text + pairs(profiles)


def measure_folder(folder: Path | None) -> list[Measured]:
    """Measure every profile of a folder that has enough device work."""
    paths = sorted(folder.iterdir()) if folder is not None else []
    results = [measure(path) for path in paths if path.name.endswith((".json", ".json.gz"))]
    return [result for result in results if result is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=Path, help="profiles of programs it was not built on")
    parser.add_argument("--runs", type=Path, help="other runs of the programs in FOLDER")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--copies", type=int, default=0)
    options = parser.parse_args()
    built, programs, runs = (
        measure_folder(folder) for folder in (options.folder, options.programs, options.runs)
    )
    profiles = built + programs + runs
    text = sheet(sets(built, programs, runs), profiles, options.folder.name)
    if options.copies:
        largest = max(profiles, key=lambda profile: len(profile.model.timeline.work)).name
        with tempfile.TemporaryDirectory() as into:
            big = measure(repeat_profile(options.folder / largest, options.copies, Path(into)))
        profiles += [big] if big else []
    text += speed(profiles)
    print(text)
    if options.write:
        print(_sheet.write("replay", text))
    off = [
        profile.name
        for profile in profiles
        if profile.whole
        and (abs(profile.fidelity.span_error) > MAX_SPAN_ERROR or profile.fidelity.drift > MAX_DRIFT)
    ]
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
