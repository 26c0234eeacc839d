"""Everything that only a GPU can tell, in one command that can be stopped and goes on where it was.

    python benchmarks/gpu/measure.py                 # on a machine with a GPU: each stage writes its sheet
    python benchmarks/gpu/measure.py --self-check    # anywhere: the emulated device in the GPU's place

Stages run in the order in which they are worth most, each in a process of its own and within its time. What
was done at this commit is not done again; what failed or ran out of time is, the next time. No stage is begun
that does not fit into what is left of ``--budget``. With ``--out FOLDER`` sheets, figures, profiles and what
is known so far are packed into archives there after each stage, so that a run that is ended loses nothing;
where they are unpacked here, the next run goes on, on another machine too (``.state`` has to travel with it).
MEASURED_COMMIT names the commit where there is no git.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import _experiment
import _sheet


@dataclass(frozen=True)
class Stage:
    """A script of this folder, its time limit in seconds, and what it measures."""

    name: str
    seconds: int
    purpose: str

    def command(self, self_check: bool) -> list[str]:
        return [sys.executable, str(HERE / f"{self.name}.py"), *(["--self-check"] if self_check else [])]


STAGES = (
    Stage("waits", 240, "the table of waits, call by call, and evidence for its rows"),
    Stage("lines", 280, "lines that wait in the examples and the field scripts"),
    Stage("copies", 100, "copies by direction, memory, size, stride and stream"),
    Stage("profiles", 250, "profiles of the examples, before and after each step"),
    Stage("metrics", 180, "the experiment with metrics at the article's size"),
    Stage("loss", 150, "the experiment with the masked loss at the article's size"),
    Stage("prices", 30, "predicted beside measured gains"),
    Stage("dry", 250, "dry runs at real size"),
    Stage("memory", 150, "allocator snapshots and their replay"),
    Stage("fixes", 150, "the gain of each fix"),
    Stage("compiled", 280, "breaks, recompilations, CUDA graphs and captures"),
    Stage("races", 120, "each race's wrong number"),
    Stage("graphs", 60, "a whole step in one CUDA graph"),
    Stage("overheads", 200, "what profiles, callbacks, guards and metrics cost"),
)
"""Most valuable first. Seconds on a machine with 16 cores; a self-check gets `SLOWDOWN` times as many, for
two."""
SLOWDOWN = 4

Runner = Callable[[Sequence[str], float], str]
"""Runs a command for at most so many seconds: ``done``, ``failed`` or ``out of time``."""


def run_limited(command: Sequence[str], seconds: float) -> str:
    """Run `command` for at most `seconds`, then end all it started."""
    return {0: "done", None: "out of time"}.get(_experiment.run_for(command, seconds), "failed")


VOLUME = 14 << 20
"""Bytes of files in one archive."""


class State:
    """The outcome of each stage, in a file written after each."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path, self.commit = path, commit
        self.known: dict[str, dict[str, object]] = json.loads(path.read_text()) if path.exists() else {}

    def done(self, stage: Stage) -> bool:
        """Whether the stage completed at this commit."""
        entry = self.known.get(stage.name, {})
        return entry.get("outcome") == "done" and entry.get("commit") == self.commit

    def keep(self, stage: Stage, outcome: str, seconds: float) -> None:
        self.known[stage.name] = {"outcome": outcome, "seconds": round(seconds), "commit": self.commit}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.known, indent=1) + "\n")
        new.replace(self.path)

    def table(self, stages: Sequence[Stage]) -> str:
        """Return the stages' outcomes as a Markdown table."""
        rows: list[list[object]] = []
        for stage in stages:
            entry = self.known.get(stage.name, {})
            old = "" if entry.get("commit") in (None, self.commit) else f" at {entry['commit']}"
            outcome = f"{entry.get('outcome', 'not measured yet')}{old}"
            rows.append([stage.name, outcome, entry.get("seconds", "–"), stage.purpose])
        return _sheet.table(["stage", "outcome", "seconds", "what"], rows)


def go(
    stages: Sequence[Stage],
    state: State,
    budget: float,
    self_check: bool,
    run: Runner,
    after: Callable[[], None],
) -> None:
    """Run the stages not done yet, as far as `budget` seconds reach; call `after` after each."""
    begin = time.monotonic()
    for stage in stages:
        left = budget - (time.monotonic() - begin)
        if state.done(stage) or (stage.seconds > left and not self_check):
            continue
        print(f"\n{stage.name}: {stage.purpose} (at most {stage.seconds} s)", flush=True)
        since, outcome = time.monotonic(), "stopped"
        try:
            outcome = run(stage.command(self_check), stage.seconds * (SLOWDOWN if self_check else 1))
        finally:
            state.keep(stage, outcome, time.monotonic() - since)
            after()


def pack(folder: Path | None) -> None:
    """Pack sheets, figures and results into one archive in `folder`; profiles and snapshots into others,
    each at most `VOLUME`."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    sheets = sorted([*HERE.glob("*.md"), *HERE.glob("*.json"), *_experiment.STATE.glob("*.json")])
    volumes, size = [sheets], VOLUME
    for path in sorted(path for path in _experiment.KEPT.rglob("*") if path.is_file()):
        length = path.stat().st_size
        if length > VOLUME:
            print(f"{path} is too large to be packed: {length >> 20} MiB", file=sys.stderr)
            continue
        size += length
        if size > VOLUME:
            volumes.append([])
            size = length
        volumes[-1].append(path)
    names = ["measured", *(f"kept-{number}" for number in range(1, len(volumes)))]
    for name, paths in zip(names, volumes, strict=True):
        if paths:
            with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
                for path in paths:
                    archive.add(path, path.relative_to(HERE))


def missing() -> list[str]:
    """Return the packages that Gapless needs and that are not installed."""
    return [name for name in ("click", "jinja2", "msgspec", "numpy", "rich") if find_spec(name) is None]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-check", action="store_true", help="run the scripts small, without a GPU")
    parser.add_argument(
        "--only", nargs="+", choices=[stage.name for stage in STAGES], help="these stages alone"
    )
    parser.add_argument("--again", action="store_true", help="also what is done at this commit")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all stages together (3600)")
    parser.add_argument("--out", type=Path, help="keep sheets and figures as an archive in this folder")
    options = parser.parse_args()
    if not options.self_check and not _experiment.REAL:
        return _experiment.no_gpu()
    stages = [stage for stage in STAGES if not options.only or stage.name in options.only]
    if lacking := missing():
        print(f"missing here: {', '.join(lacking)}", file=sys.stderr)
        return 2
    _experiment.STATE.mkdir(exist_ok=True)
    name = "self-check" if options.self_check else "stages"
    state = State(_experiment.STATE / f"{name}.json", _sheet.commit())
    if options.again:
        for stage in stages:
            state.known.pop(stage.name, None)
    go(stages, state, options.budget, options.self_check, run_limited, lambda: pack(options.out))
    print(f"\n{state.table(stages)}")
    return 0 if all(state.done(stage) for stage in stages) else 1


if __name__ == "__main__":
    sys.exit(main())
