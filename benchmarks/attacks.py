"""What becomes of names and files that were made to break the tool: seventy-four attacks, each in a process.

    python benchmarks/attacks.py                # all of them
    python benchmarks/attacks.py --only pipe    # those with this in their name
    python benchmarks/attacks.py --write        # writes benchmarks/sheets/attacks.md

Each runs in a folder of its own. It fails with a traceback, after more than 60 seconds, where a file is
changed that was not named, where a link, a pipe or a mode is not what it was, or where a report is lost.
Nothing outside of the folder is written to, and no device but ``/dev/null`` is touched. Exits with 1 where
any fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _sheet
from _attacks import ATTACKS, TRACE, Attack

import gapless

TIMEOUT = 60
"""Seconds; a command ends sooner even on a busy machine."""
OUR_FILES = os.fsencode(Path(gapless.__file__).parent)
State = dict[str, tuple[str, int, str]]


@dataclass(frozen=True)
class Outcome:
    """The result of an attack: `said` is the last line on standard error, `failed` what is wrong, or
    empty."""

    attack: Attack
    status: int
    seconds: float
    said: str
    failed: str


def _folder_state(folder: Path) -> State:
    """Return the mode, links and content of every file in `folder`."""
    state = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        held = os.readlink(path) if path.is_symlink() else ""
        if stat.S_ISREG(mode):
            held = hashlib.sha256(path.read_bytes()).hexdigest()
        state[str(path.relative_to(folder))] = (stat.filemode(mode), path.lstat().st_nlink, held)
    return state


def run_attack(attack: Attack) -> Outcome:
    """Run an attack in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.json").write_bytes(TRACE)
        attack.prepare(folder)
        before = _folder_state(folder)
        begin = time.perf_counter()
        limit = (attack.limit, attack.limit) if attack.limit else None

        def limited() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)

        try:
            done = subprocess.run(
                [sys.executable, "-m", "gapless", *attack.words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                preexec_fn=limited,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(attack, -1, time.perf_counter() - begin, "", f"hangs for {TIMEOUT} s")
        seconds = time.perf_counter() - begin
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Outcome(
            attack,
            done.returncode,
            seconds,
            said[-1] if said else "",
            _failure(attack, done, before, _folder_state(folder)),
        )


def _failure(
    attack: Attack,
    done: subprocess.CompletedProcess[bytes],
    before: State,
    after: State,
) -> str:
    own = b"train.py" not in done.stderr or OUR_FILES in done.stderr  # a script keeps its own
    if b"Traceback" in done.stderr and own:
        return "traceback"
    if done.returncode not in attack.statuses:
        return f"exit status {done.returncode}"
    touched = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    strange = [name for name in touched if name not in attack.may_change]
    if strange:
        return f"changed {', '.join(sorted(strange))[:60]}"
    kinds = [
        name for name in touched if name in before and before[name][:2] != after.get(name, ("", 0, ""))[:2]
    ]
    if kinds:
        return f"another kind, mode or number of links: {', '.join(kinds)[:60]}"
    if attack.saves and attack.saves not in after:
        return "the session is lost"
    if attack.reports and not done.stdout.strip():
        return "the report is lost"
    return ""


def sheet(outcomes: Sequence[Outcome], command: str) -> str:
    """Return the sheet of all outcomes."""
    method = (
        "each attack runs the command in a process and a folder of its own; what the folder holds is compared"
    )
    text = _sheet.header("Attacks", command, method)
    count = {
        word: sum(word in outcome.failed for outcome in outcomes)
        for word in ("traceback", "hangs", "changed", "lost", "kind")
    }
    text += (
        f"- {len(outcomes)} attacks; tracebacks: {count['traceback']}; hangs: {count['hangs']}; "
        f"files changed that were not named: {count['changed'] + count['kind']}; "
        f"reports lost: {count['lost']}; "
        f"failed in all: {sum(bool(outcome.failed) for outcome in outcomes)}\n\n"
    )
    rows: list[list[object]] = [
        [
            result.attack.name,
            result.status,
            _shorten(result.said) or "(shown)",
            result.failed or "as it should",
        ]
        for result in outcomes
    ]
    return text + _sheet.table(["attack", "exit status", "what is said", "outcome"], rows)


def _shorten(said: str) -> str:
    plain = said.replace("|", "\\|").replace(tempfile.gettempdir(), "")
    return plain if len(plain) <= 110 else plain[:107] + "…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="only attacks with this in their name")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    outcomes = [run_attack(attack) for attack in ATTACKS if options.only in attack.name]
    text = sheet(outcomes, "python benchmarks/attacks.py --write")
    print(text)
    if options.write:
        print(_sheet.write("attacks", text))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
