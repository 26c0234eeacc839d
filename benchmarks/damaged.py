"""What is said of profiles that were cut, thinned or corrupted, beside what is said of the whole ones.

    python benchmarks/damaged.py FOLDER                 # 1,000 versions of ten profiles
    python benchmarks/damaged.py FOLDER --count 100     # so many
    python benchmarks/damaged.py FOLDER --others        # as many of ten others
    python benchmarks/damaged.py FOLDER --write         # writes benchmarks/sheets/damaged.md

Each version is read, explained and told as `gapless trace` does it, without prices. It fails with a
traceback, after more than 20 seconds, above 1 GB of memory, or where the verdict contradicts the whole
profile's: the GPU's idleness, or what one cause has of it, differs by more than 10 points of the steps, and
nothing says that evidence is missing. Results are kept in a file of their own (``--keep FILE``), so that a
run can be stopped and taken up again. Exits with 1 where any version fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import _sheet
from _damage import KINDS, damage_profile
from _whole import Whole

from gapless.analyze.profile.building import profile_file
from gapless.analyze.profile.profile_report import report_run
from gapless.errors import UnreadableInput
from gapless.model import Profile
from gapless.render import Style, renderer

MAX_DIFFERENCE = 0.10
MAX_SECONDS = 20.0
MAX_BYTES = 1 << 30
PROFILES_PER_SET = 10
MAX_PROFILE_BYTES = 1_300_000
"""Compressed bytes; larger profiles are left out."""


@dataclass(frozen=True)
class Result:
    """The result of one version. `said` says that evidence is missing; "" if nothing does."""

    profile: str
    kind: str
    seed: int
    said: str
    points: float
    seconds: float
    memory: int
    error: str = ""

    @property
    def failed(self) -> str:
        """What is wrong with the result; "" if nothing is."""
        if self.error:
            return self.error
        if self.seconds > MAX_SECONDS:
            return f"{self.seconds:.0f} s"
        if self.memory > MAX_BYTES:
            return f"{self.memory >> 20} MB"
        if not self.said and self.points > MAX_DIFFERENCE:
            return f"{100 * self.points:.0f} points off without a word"
        return ""


def shares(file_profile: Profile) -> dict[str, float]:
    """Return the GPU's idleness and each cause's part of it, as shares of the steps."""
    total = file_profile.steps.total or 1
    return {
        "idle": file_profile.idle / total,
        **{cause: idle / total for cause, idle in file_profile.idle_by_cause()},
    }


def largest_difference(damaged: dict[str, float], whole: dict[str, float]) -> float:
    """Return the largest difference between causes; time moved to "unknown" counts as admitted."""
    said = max(damaged.get("unknown", 0.0) - whole.get("unknown", 0.0), 0.0)
    lost = {key: part - damaged.get(key, 0.0) - said for key, part in whole.items() if key != "idle"}
    blamed = {key: part - whole.get(key, 0.0) for key, part in damaged.items() if key != "unknown"}
    idle = abs(damaged.get("idle", 0.0) - whole.get("idle", 0.0))
    return max(0.0, idle, *lost.values(), *blamed.values())


def examine(data: bytes, of_whole: dict[str, float]) -> tuple[str, float, str]:
    """Return what is said to be missing, how far the verdict is off, and the traceback or ""."""
    ending = ".json.gz" if data[:2] == b"\x1f\x8b" else ".json"
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        file.write(data)
        file.flush()
        try:
            file_profile = profile_file(file.name)
            file_report = report_run([file_profile])
            renderer("text")(file_report, Style())
        except UnreadableInput as error:
            return str(error).replace(file.name, "FILE"), 0.0, ""
        except Exception:
            return "", 0.0, traceback.format_exc().strip().splitlines()[-1]
    held, verdict = file_profile.coverage, file_report.verdict
    whole = held.complete and not (held.excerpt or held.bare or held.endless or held.silent)
    said = "" if whole else f"{verdict.sentence} ({verdict.confidence})"
    return said, largest_difference(shares(file_profile), of_whole), ""


def measure_versions(path: Path, other: Path, wanted: Sequence[tuple[str, int]], into: str) -> None:
    """Measure the versions in `wanted` of the profile at `path`; append each result to the file `into`."""
    whole = Whole(_bytes(path), _bytes(other))
    of_whole = shares(profile_file(str(path)))
    for kind, seed in wanted:
        data = damage_profile(whole, kind, seed)
        # A child measures a version, so that the cost of making it is not included.
        child = _FORK.Process(target=_measure, args=(data, of_whole, path.name, kind, seed, into))
        begin = time.perf_counter()
        child.start()
        child.join(3 * MAX_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
        if child.exitcode:
            seconds = time.perf_counter() - begin
            _keep(into, Result(path.name, kind, seed, "", 0.0, seconds, 0, f"ended with {child.exitcode}"))


def _measure(data: bytes, of_whole: dict[str, float], name: str, kind: str, seed: int, into: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    said, points, error = examine(data, of_whole)
    seconds = time.perf_counter() - begin
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    _keep(into, Result(name, kind, seed, said, points, seconds, memory, error))


_FORK = multiprocessing.get_context("fork")


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _keep(into: str, result: Result) -> None:
    with open(into, "a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def choose_profiles(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return two lists of ten profiles, spread by size over the complete ones of the folder."""
    fit: list[Path] = []
    for path in sorted(folder.glob("*.json*"), key=lambda entry: entry.stat().st_size):
        if path.stat().st_size > MAX_PROFILE_BYTES:
            continue
        try:
            file_profile = profile_file(str(path))
        except UnreadableInput:
            continue
        if file_profile.coverage.complete and file_profile.launches.count >= 50:
            fit.append(path)
    first = _spread_evenly(fit)
    return first, _spread_evenly([path for path in fit if path not in first])


def _spread_evenly(some: Sequence[Path]) -> list[Path]:
    step = max(len(some) / PROFILES_PER_SET, 1)
    return [some[int(number * step)] for number in range(min(PROFILES_PER_SET, len(some)))]


def versions(count: int, profiles: int) -> Iterator[tuple[int, str, int]]:
    """Yield (profile, kind, seed): all kinds in turn, profile after profile."""
    kinds = sorted(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield (number // len(kinds) + number) % profiles, kind, number // len(kinds)


def sheet(results: Sequence[Result], sets: Sequence[Sequence[Path]], command: str) -> str:
    """Return the sheet of all results; `sets` are the groups of profiles."""
    method = (
        f"{len(results):,} versions of {len({result.profile for result in results})} profiles are read, "
        "explained and told in a process each, and compared with the whole profile: idleness and each "
        "cause's part of it, as shares of the steps"
    )
    text = _sheet.header("Damaged profiles", command, method)
    failed = [result for result in results if result.failed]
    said = sum(bool(result.said) for result in results)
    text += (
        f"- tracebacks: {sum(bool(result.error) for result in results)}; "
        f"longest {max(result.seconds for result in results):.1f} s; "
        f"most memory {max(result.memory for result in results) >> 20} MB\n"
        f"- said that evidence is missing, or that nothing can be read: {said:,} of {len(results):,}\n"
        f"- more than {100 * MAX_DIFFERENCE:.0f} points off without a word: "
        f"{sum(not result.said and result.points > MAX_DIFFERENCE for result in results)}\n\n"
    )
    for title, paths in zip(("The ten first", "Ten others"), sets, strict=False):
        names = {path.name for path in paths}
        own = [result for result in results if result.profile in names]
        text += f"- {title}: {sum(bool(result.failed) for result in own)} of {len(own):,} failed\n"
    text += "\n"
    by_kind = {kind: [result for result in results if result.kind == kind] for kind in sorted(KINDS)}
    columns = ["damage", "versions", "said", "furthest off without a word", "failed"]
    rows: list[list[object]] = [
        [kind, len(own), sum(bool(result.said) for result in own),
         f"{100 * max((result.points for result in own if not result.said), default=0.0):.1f}",
         sum(bool(result.failed) for result in own)]
        for kind, own in by_kind.items() if own
    ]  # fmt: skip
    text += _sheet.table(columns, rows)
    if failed:
        lines = [
            f"- {result.profile[-40:]}, {result.kind} {result.seed}: {result.failed}" for result in failed
        ]
        text += "\n## Failed\n\n" + "\n".join(lines) + "\n"
    return text


def _kept_results(path: Path) -> list[Result]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def _measure_missing(paths: Sequence[Path], options: argparse.Namespace) -> set[tuple[str, str, int]]:
    """Measure the wanted versions of these profiles that are not kept yet; return the keys of all wanted."""
    done = {(result.profile, result.kind, result.seed) for result in _kept_results(options.keep)}
    wanted: dict[int, list[tuple[str, int]]] = {}
    keys = set()
    for at, kind, seed in versions(options.count, len(paths)):
        if options.kind not in kind:
            continue
        keys.add((paths[at].name, kind, seed))
        if (paths[at].name, kind, seed) not in done:
            wanted.setdefault(at, []).append((kind, seed))
    for at, some in wanted.items():
        measure_versions(paths[at], paths[(at + 1) % len(paths)], some, str(options.keep))
    return keys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kind", default="", help="only kinds with this in their name")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "damaged.jsonl")
    parser.add_argument("--others", action="store_true", help="as many versions of ten other profiles too")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sets = choose_profiles(options.folder)[: 1 + options.others]
    keys = {key for paths in sets for key in _measure_missing(paths, options)}
    results = [
        result for result in _kept_results(options.keep) if (result.profile, result.kind, result.seed) in keys
    ]
    words = "".join(f" --{word}" for word in ("others", "write") if word == "write" or options.others)
    text = sheet(results, sets, f"python benchmarks/damaged.py {options.folder.name}{words}")
    print(text)
    print(dict(Counter(result.kind for result in results if result.failed)))
    if options.write:
        print(_sheet.write("damaged", text))
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
