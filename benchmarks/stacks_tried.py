"""Public training scripts that are not in `stacks/`, under `gapless check`: the sheet of what came out.

They are not kept here. Each was run as its authors start it, at a small size, with generated data, and its
session saved as NAME.session in a folder; `python benchmarks/stacks_tried.py FOLDER` reads those:

    gapless check --no-loader -o FOLDER/nanogpt.session train.py --dataset=toy …
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import _sheet


class Tried(NamedTuple):
    """A script: its source, changes besides data and sizes, and the explanation of its syncs."""

    source: str
    changed: str
    syncs: str


def read_notes() -> dict[str, Tried]:
    """Return the notes on each script, by the name of its session."""
    lines = (_sheet.HERE / "evidence" / "stacks_tried.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {name: Tried(*rest) for name, *rest in rows[1:]}


def row(name: str, tried: Tried, folder: Path) -> list[object]:
    """Return a line of the sheet."""
    done = subprocess.run(
        [sys.executable, "-m", "gapless", "show", str(folder / f"{name}.session"), "-f", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    steps, ending = report.get("steps") or {}, report.get("ending") or {}
    least, most = steps.get("least"), steps.get("most")
    reached = steps.get("seen", 0) >= 10 and not ending.get("status")
    return [
        tried.source,
        tried.changed or "–",
        "yes" if reached else f"**no**: {ending.get('message') or ending.get('how')}",
        "–" if least is None else f"{least}" if least == most else f"{least} to {most}",
        "explained" if tried.syncs else "not looked at",
    ]


def main() -> None:
    """Write the sheet of the sessions in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the sessions are")
    folder = parser.parse_args().folder
    with_session = {
        name: tried for name, tried in read_notes().items() if (folder / f"{name}.session").exists()
    }
    rows = [row(name, tried, folder) for name, tried in with_session.items()]
    method = (
        "each script once, at a small size, offline, with generated data, on a machine in use, so "
        "no times; those until nerf-pytorch with `--dry` between commits 94c8e03 and 0623894, the others and "
        "RAFT at e4da767 with what this sheet came with, which changed none of the counts below. By hand: "
        "with the report in view, each place was explained from the library's code and from what the "
        "operator does on CUDA; no GPU was there"
    )
    text = _sheet.header(
        "Other training scripts that were tried", "python benchmarks/stacks_tried.py FOLDER", method
    )
    reached, explained = (
        sum(cells[2] == "yes" for cells in rows),
        sum(cells[4] == "explained" for cells in rows),
    )
    text += f"{reached} of {len(rows)} runs reach step 10; the syncs of {explained} are explained.\n\n"
    columns = ["script", "changed", "reached step 10", "syncs in a step", "by hand"]
    text += _sheet.table(columns, rows)
    text += "\n## What they are\n\n"
    text += "".join(f"- {tried.source}: {tried.syncs}.\n" for tried in with_session.values() if tried.syncs)
    _sheet.write("stacks_tried", text)


if __name__ == "__main__":
    main()
