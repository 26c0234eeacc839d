"""Edits that are wrong on purpose, and edits that are right: what `gapless prove` says of them.

Each is a mechanical change of a script (`_mutations.py`) at a place chosen by a fixed seed. A wrong edit that
is not refused is run again by an observer of its own (`_proof_oracle.py`): if it leaves nothing different, or
never ran, it is no wrong edit, and is counted apart. A sample of the refused is looked at in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _sheet
from _mutations import RIGHT, WRONG, Kind, Span, apply, choose
from _proof_oracle import observe

ROOT = Path(__file__).resolve().parents[1]
FIELD = ROOT / "tests" / "field" / "scripts"
SCREENS = ROOT / "examples" / "screens"
NAMES = (
    *("siamese", "vae", "manual_update", "ppo", "mnist_like", "gnn"),
    *("long_period", "rnn_lm", "distillation", "reinforce"),
)
SCRIPTS = (*(FIELD / f"{name}.py" for name in NAMES), SCREENS / "detecting.py", SCREENS / "evaluating.py")
SAMPLED_SHARE = 0.1
"""Share of the refused edits that the observer looks at: it takes as long as the proof."""
MIN_WRONG, MIN_RIGHT = 200, 40
"""How many edits of each sort a sheet needs."""


def changed_lines(text: str, edit: tuple[Span, ...]) -> set[int]:
    """Return the lines of the edited text that `edit` wrote, as far as it wrote any."""
    new = apply(text, edit)
    old_lines, new_lines = text.splitlines(), new.splitlines()
    kept = set(old_lines)
    return {n for n, line in enumerate(new_lines, 1) if line not in kept}


def edits_of(script: Path, number: int) -> Iterator[tuple[str, str, tuple[Span, ...]]]:
    """Yield sort, kind and edit for a script."""
    text = script.read_text()
    sorts: tuple[tuple[str, dict[str, Kind]], ...] = (("wrong", WRONG), ("right", RIGHT))
    for sort, kinds in sorts:
        for name, kind in kinds.items():
            for edit in choose(kind, text, f"{script.name} {name}", number):
                yield sort, name, edit


def prove_script(script: Path, number: int, out: Path) -> None:
    """Prove the edits of a script, and append what came out to `out`, a line each."""
    from gapless.fixes.proof import ProjectVersion, Prover, ScriptProject

    text = script.read_text()
    project = ScriptProject.of(script, script.parent)
    seen_before: dict[str, Any] = {}
    picker = random.Random(script.name)
    with Prover(ProjectVersion(project)) as prover, open(out, "a") as file:
        for sort, kind, edit in edits_of(script, number):
            new = apply(text, edit)
            began = time.monotonic()
            proof = prover.prove(ProjectVersion(project, {project.script: new.encode()}))
            row: dict[str, Any] = {
                "script": script.name,
                "sort": sort,
                "kind": kind,
                "outcome": proof.outcome,
                "reason": proof.reason,
                "fewer": proof.proved,
                "never_ran": bool(proof.not_run),
                "waits": [proof.before, proof.after],
                "seconds": time.monotonic() - began,
                "edit": [list(span) for span in edit],
            }
            if sort == "wrong" and (proof.outcome != "refused" or picker.random() < SAMPLED_SHARE):
                row["observed"] = compare(script, new, changed_lines(text, edit), seen_before)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{script.name:22} {sort:6} {kind:30} {proof.outcome:10} {proof.reason[:110]}", flush=True)


def compare(script: Path, new: str, lines: set[int], before: dict[str, Any]) -> str:
    """Say how the observer finds two versions: ``same``, ``never ran``, or the first part that differs."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / script.parent.name
        shutil.copytree(script.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if not before:
            before.update(observe(copy, script.name, set()))
        (copy / script.name).write_text(new)
        after = observe(copy, script.name, lines)
    if lines and not after["ran"] and after["ending"] == before["ending"]:
        return "never ran"
    parts = [part for part in before if part != "ran" and before[part] != after.get(part)]
    return parts[0] if parts else "same"


def judge(row: dict[str, Any]) -> str:
    """Return the column of a row."""
    if row["sort"] == "right":
        proved = row["outcome"] in ("bits", "rounding")
        return "proved" if proved else "refused" if row["outcome"] == "refused" else "not provable"
    if row["outcome"] == "refused":
        return "refused"
    if row["never_ran"] and row.get("observed") in ("never ran", "same"):
        return "never ran"
    if row["outcome"] == "unprovable":
        return "not provable"
    return "equivalent" if row.get("observed") == "same" else "PROVED"


COLUMNS = {
    "wrong": ("refused", "not provable", "PROVED", "never ran", "equivalent"),
    "right": ("proved", "not provable", "refused"),
}


def render(rows: list[dict[str, Any]]) -> str:
    """Return the tables of the sheet."""
    lines = []
    for sort, columns in COLUMNS.items():
        of = [row for row in rows if row["sort"] == sort]
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in of:
            counts[row["kind"]][judge(row)] += 1
        lines += [f"## Edits that are {sort}", ""]
        lines += [f"| kind | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
        for kind, by_column in sorted(counts.items()):
            lines.append(f"| {kind} | {' | '.join(str(by_column[column]) for column in columns)} |")
        total: Counter[str] = sum(counts.values(), Counter())
        lines += [f"| **all** | {' | '.join(f'**{total[column]}**' for column in columns)} |", ""]
    wrong = [row for row in rows if row["sort"] == "wrong"]
    refused = [row for row in wrong if judge(row) == "refused"]
    looked = [row for row in refused if "observed" in row]
    shown = Counter(row["observed"] for row in looked)
    named = sum(bool(row["reason"]) for row in refused)
    lines += [
        f"Of {len(refused)} refusals {named} name what differs first. Of {len(looked)} of them, chosen by a "
        "seed, the observer, which sees only what is left at the end, finds: "
        + ", ".join(f"{number} {part}" for part, number in shown.most_common())
        + ". (What differs only in between, or only in the lines that wait, is the same at the end.)",
        "",
        f"A proof took {sum(row['seconds'] for row in rows) / max(len(rows), 1):.1f} s on average.",
        "",
        "## Not as they should be",
        "",
    ]
    odd = [
        row
        for row in rows
        if judge(row) in ("PROVED", "not provable") or (row["sort"], judge(row)) == ("right", "refused")
    ]
    lines += [f"- {row['script']}, {row['kind']}: {judge(row)}. {row['reason']}" for row in odd] or ["None."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", nargs="*", type=Path, default=SCRIPTS)
    parser.add_argument("--number", type=int, default=1, help="edits of each kind for each script")
    parser.add_argument("--rows", type=Path, help="a file of rows to go on with, one script after the other")
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch  # so that forks have it

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = options.rows or Path(folder) / "rows"
        done = (
            {json.loads(line)["script"] for line in file.read_text().splitlines()} if file.exists() else set()
        )
        for script in options.scripts:
            if script.name not in done:
                prove_script(script.resolve(), options.number, file)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    text = render(rows)
    print(text)
    if options.sheet:
        command = f"python benchmarks/proof.py --number {options.number}"
        method = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
        options.sheet.write_text(_sheet.header("Edits, proved and refused", command, method) + text)
    wrong, right = (sum(row["sort"] == sort for row in rows) for sort in ("wrong", "right"))
    if wrong < MIN_WRONG or right < MIN_RIGHT:
        print(f"only {wrong} wrong and {right} right edits")


if __name__ == "__main__":
    main()
