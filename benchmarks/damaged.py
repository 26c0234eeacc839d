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

POINTS = 0.10
SECONDS = 20.0
BYTES = 1 << 30
PROFILES = 10
LARGEST = 1_300_000
"""Compressed bytes of the largest profile that is taken."""


@dataclass(frozen=True)
class Result:
    """What became of one version. `said` is how it is told that evidence is missing; "" where it is not."""

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
        """What is wrong with it; "" where nothing is."""
        if self.error:
            return self.error
        if self.seconds > SECONDS:
            return f"{self.seconds:.0f} s"
        if self.memory > BYTES:
            return f"{self.memory >> 20} MB"
        if not self.said and self.points > POINTS:
            return f"{100 * self.points:.0f} points off without a word"
        return ""


def shares(found: Profile) -> dict[str, float]:
    """The idleness of the GPU and what each cause has of it, as parts of the steps."""
    total = found.steps.total or 1
    return {"idle": found.idle / total, **{cause: idle / total for cause, idle in found.idle_by_cause()}}


def apart(found: dict[str, float], whole: dict[str, float]) -> float:
    """The largest difference between causes; what is called unknown instead of its cause is said."""
    said = max(found.get("unknown", 0.0) - whole.get("unknown", 0.0), 0.0)
    lost = {key: part - found.get(key, 0.0) - said for key, part in whole.items() if key != "idle"}
    blamed = {key: part - whole.get(key, 0.0) for key, part in found.items() if key != "unknown"}
    idle = abs(found.get("idle", 0.0) - whole.get("idle", 0.0))
    return max(0.0, idle, *lost.values(), *blamed.values())


def look(data: bytes, of_whole: dict[str, float]) -> tuple[str, float, str]:
    """What is said to be missing, how far the verdict is off, and the traceback if there is one."""
    ending = ".json.gz" if data[:2] == b"\x1f\x8b" else ".json"
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        file.write(data)
        file.flush()
        try:
            found = profile_file(file.name)
            told = report_run([found])
            renderer("text")(told, Style())
        except UnreadableInput as error:
            return str(error).replace(file.name, "FILE"), 0.0, ""
        except Exception:
            return "", 0.0, traceback.format_exc().strip().splitlines()[-1]
    held, verdict = found.coverage, told.verdict
    whole = held.complete and not (held.excerpt or held.bare or held.endless or held.silent)
    said = "" if whole else f"{verdict.sentence} ({verdict.confidence})"
    return said, apart(shares(found), of_whole), ""


def of_profile(path: Path, other: Path, wanted: Sequence[tuple[str, int]], into: str) -> None:
    """Every version in `wanted` of the profile in `path`, each result a line of `into`: in a process."""
    whole = Whole(_bytes(path), _bytes(other))
    of_whole = shares(profile_file(str(path)))
    for kind, seed in wanted:
        data = damage_profile(whole, kind, seed)
        # What a version costs is measured without what making it took: in a child of its own.
        child = _FORK.Process(target=_measure, args=(data, of_whole, path.name, kind, seed, into))
        begin = time.perf_counter()
        child.start()
        child.join(3 * SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
        if child.exitcode:
            seconds = time.perf_counter() - begin
            _keep(into, Result(path.name, kind, seed, "", 0.0, seconds, 0, f"ended with {child.exitcode}"))


def _measure(data: bytes, of_whole: dict[str, float], name: str, kind: str, seed: int, into: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    said, points, error = look(data, of_whole)
    seconds = time.perf_counter() - begin
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    _keep(into, Result(name, kind, seed, said, points, seconds, memory, error))


_FORK = multiprocessing.get_context("fork")


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _keep(into: str, one: Result) -> None:
    with open(into, "a") as file:
        file.write(json.dumps(asdict(one)) + "\n")


def chosen(folder: Path) -> tuple[list[Path], list[Path]]:
    """Twice ten profiles of the folder, by size spread over those there that can be told about whole."""
    fit: list[Path] = []
    for path in sorted(folder.glob("*.json*"), key=lambda one: one.stat().st_size):
        if path.stat().st_size > LARGEST:
            continue
        try:
            found = profile_file(str(path))
        except UnreadableInput:
            continue
        if found.coverage.complete and found.launches.count >= 50:
            fit.append(path)
    first = _spread(fit)
    return first, _spread([path for path in fit if path not in first])


def _spread(some: Sequence[Path]) -> list[Path]:
    step = max(len(some) / PROFILES, 1)
    return [some[int(number * step)] for number in range(min(PROFILES, len(some)))]


def versions(count: int, profiles: int) -> Iterator[tuple[int, str, int]]:
    """Which version of which profile: every kind in turn, of one profile after the other."""
    kinds = sorted(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield (number // len(kinds) + number) % profiles, kind, number // len(kinds)


def sheet(found: Sequence[Result], sets: Sequence[Sequence[Path]], command: str) -> str:
    """What became of all of them, with the `sets` of profiles apart."""
    method = (
        f"{len(found):,} versions of {len({one.profile for one in found})} profiles are read, explained and "
        "told in a process each, and compared with the whole profile: idleness and each cause's part of it, "
        "as shares of the steps"
    )
    text = _sheet.header("Damaged profiles", command, method)
    failed = [one for one in found if one.failed]
    said = sum(bool(one.said) for one in found)
    text += (
        f"- tracebacks: {sum(bool(one.error) for one in found)}; "
        f"longest {max(one.seconds for one in found):.1f} s; "
        f"most memory {max(one.memory for one in found) >> 20} MB\n"
        f"- said that evidence is missing, or that nothing can be read: {said:,} of {len(found):,}\n"
        f"- more than {100 * POINTS:.0f} points off without a word: "
        f"{sum(not one.said and one.points > POINTS for one in found)}\n\n"
    )
    for title, paths in zip(("The ten first", "Ten others"), sets, strict=False):
        names = {path.name for path in paths}
        own = [one for one in found if one.profile in names]
        text += f"- {title}: {sum(bool(one.failed) for one in own)} of {len(own):,} failed\n"
    text += "\n"
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in sorted(KINDS)}
    columns = ["damage", "versions", "said", "furthest off without a word", "failed"]
    rows: list[list[object]] = [
        [kind, len(own), sum(bool(one.said) for one in own),
         f"{100 * max((one.points for one in own if not one.said), default=0.0):.1f}",
         sum(bool(one.failed) for one in own)]
        for kind, own in by_kind.items() if own
    ]  # fmt: skip
    text += _sheet.table(columns, rows)
    if failed:
        lines = [f"- {one.profile[-40:]}, {one.kind} {one.seed}: {one.failed}" for one in failed]
        text += "\n## Failed\n\n" + "\n".join(lines) + "\n"
    return text


def _kept(path: Path) -> list[Result]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def _made(paths: Sequence[Path], options: argparse.Namespace) -> set[tuple[str, str, int]]:
    """The versions of these profiles that are asked for: those that are not kept are looked at."""
    done = {(one.profile, one.kind, one.seed) for one in _kept(options.keep)}
    wanted: dict[int, list[tuple[str, int]]] = {}
    asked = set()
    for at, kind, seed in versions(options.count, len(paths)):
        if options.kind not in kind:
            continue
        asked.add((paths[at].name, kind, seed))
        if (paths[at].name, kind, seed) not in done:
            wanted.setdefault(at, []).append((kind, seed))
    for at, some in wanted.items():
        of_profile(paths[at], paths[(at + 1) % len(paths)], some, str(options.keep))
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kind", default="", help="only kinds with this in their name")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "damaged.jsonl")
    parser.add_argument("--others", action="store_true", help="as many versions of ten other profiles too")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sets = chosen(options.folder)[: 1 + options.others]
    asked = {key for paths in sets for key in _made(paths, options)}
    found = [one for one in _kept(options.keep) if (one.profile, one.kind, one.seed) in asked]
    words = "".join(f" --{word}" for word in ("others", "write") if word == "write" or options.others)
    text = sheet(found, sets, f"python benchmarks/damaged.py {options.folder.name}{words}")
    print(text)
    print(dict(Counter(one.kind for one in found if one.failed)))
    if options.write:
        print(_sheet.write("damaged", text))
    return 1 if any(one.failed for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
