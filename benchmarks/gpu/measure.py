"""Everything that only a GPU can tell, in one command that can be stopped and goes on where it was.

    python benchmarks/gpu/measure.py                 # on a machine with a GPU: each stage writes its sheet
    python benchmarks/gpu/measure.py --self-check    # anywhere: the emulated device in the GPU's place

Stages run in the order in which they are worth most, each in a process of its own and within its time. What
was done at this commit is not done again; what failed or ran out of time is, the next time. No stage is begun
that does not fit into what is left of ``--budget``. With ``--out FOLDER`` the sheets and figures are packed
into one archive there after each stage, so that a run that is ended loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import _experiment
import _sheet


@dataclass(frozen=True)
class Stage:
    """A script of this folder, the seconds that it may take, and what it measures."""

    name: str
    seconds: int
    what: str

    def command(self, self_check: bool) -> list[str]:
        return [sys.executable, str(HERE / f"{self.name}.py"), *(["--self-check"] if self_check else [])]


STAGES = (
    Stage("waits", 400, "the table of waits, call by call"),
    Stage("lines", 300, "lines that wait in the examples"),
    Stage("profiles", 400, "profiles of the examples, before and after each step"),
    Stage("metrics", 300, "the experiment with metrics at the article's size"),
    Stage("loss", 300, "the experiment with the masked loss at the article's size"),
    Stage("prices", 60, "predicted beside measured gains"),
    Stage("memory", 300, "allocator snapshots and their replay"),
    Stage("graphs", 200, "a whole step in one CUDA graph"),
)

Runner = Callable[[Sequence[str], float], str]
"""Runs a command for so many seconds at most: ``done``, ``failed`` or ``out of time``."""


def ran(command: Sequence[str], seconds: float) -> str:
    """Run `command` in a session of its own, and end all that it started where it takes longer."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return "failed" if process.wait(seconds) else "done"
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


class State:
    """What became of each stage, in a file that is written after each."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path, self.commit = path, commit
        self.known: dict[str, dict[str, object]] = json.loads(path.read_text()) if path.exists() else {}

    def done(self, stage: Stage) -> bool:
        """Whether it ran to its end at this commit."""
        entry = self.known.get(stage.name, {})
        return entry.get("outcome") == "done" and entry.get("commit") == self.commit

    def keep(self, stage: Stage, outcome: str, seconds: float) -> None:
        self.known[stage.name] = {"outcome": outcome, "seconds": round(seconds), "commit": self.commit}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.known, indent=1) + "\n")
        new.replace(self.path)

    def table(self, stages: Sequence[Stage]) -> str:
        """What is known of each of these, in Markdown."""
        rows: list[list[object]] = []
        for stage in stages:
            entry = self.known.get(stage.name, {})
            old = "" if entry.get("commit") in (None, self.commit) else f" at {entry['commit']}"
            outcome = f"{entry.get('outcome', 'not measured yet')}{old}"
            rows.append([stage.name, outcome, entry.get("seconds", "–"), stage.what])
        return _sheet.table(["stage", "outcome", "seconds", "what"], rows)


def go(
    stages: Sequence[Stage],
    state: State,
    budget: float,
    self_check: bool,
    run: Runner,
    after: Callable[[], None],
) -> None:
    """Run what is not done yet, as far as the seconds of `budget` reach; `after` is called after each."""
    begin = time.monotonic()
    for stage in stages:
        left = budget - (time.monotonic() - begin)
        if state.done(stage) or stage.seconds > left:
            continue
        print(f"\n{stage.name}: {stage.what} (at most {stage.seconds} s)", flush=True)
        since, outcome = time.monotonic(), "stopped"
        try:
            outcome = run(stage.command(self_check), stage.seconds)
        finally:
            state.keep(stage, outcome, time.monotonic() - since)
            after()


def pack(folder: Path | None) -> None:
    """All sheets and figures of this folder as one archive in `folder`."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "measured.tar.gz", "w:gz") as archive:
        for path in sorted([*HERE.glob("*.md"), *HERE.glob("*.json")]):
            archive.add(path, path.name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-check", action="store_true", help="run the scripts small, without a GPU")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in STAGES], help="these stages alone")
    parser.add_argument("--again", action="store_true", help="also what is done at this commit")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all stages together (3600)")
    parser.add_argument("--out", type=Path, help="keep sheets and figures as an archive in this folder")
    options = parser.parse_args()
    if not options.self_check:
        import torch

        if not torch.cuda.is_available():
            return _experiment.no_gpu()
    stages = [one for one in STAGES if not options.only or one.name in options.only]
    name = ".self_check.json" if options.self_check else ".state.json"
    state = State(HERE / name, _sheet.commit())
    if options.again:
        for stage in stages:
            state.known.pop(stage.name, None)
    go(stages, state, options.budget, options.self_check, ran, lambda: pack(options.out))
    print(f"\n{state.table(stages)}")
    return 0 if all(state.done(stage) for stage in stages) else 1


if __name__ == "__main__":
    sys.exit(main())
