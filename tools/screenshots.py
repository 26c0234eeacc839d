"""Write the pictures of the documentation: what a terminal shows, as SVG, in `docs/images`.

    python tools/screenshots.py [--profiles FOLDER]

The commands are those of the pages (`tools/outputs.py`), run with colours. Pictures name common fonts and
fetch none.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import outputs  # beside this file
from rich.console import Console
from rich.text import Text

TARGET = outputs.PROJECT / "docs" / "images"
PICTURES = {
    "check": ("start.md", "gapless check -q train.py", 34),
    "trace": ("journeys/loading.md", "gapless trace -q num_workers_0.pt.trace.json.gz", 27),
}
"""By name: the page with the files that are needed, the command, and how many lines are shown."""
LARGEST = 60_000
"""Bytes; a larger picture does not belong into the repository."""


def picture(command: str, printed: str, lines: int) -> str:
    """The first `lines` of what `command` has `printed` in colours, as SVG."""
    console = Console(record=True, width=82, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.assemble(("$ ", "bold green"), (command.replace(" -q", ""), "bold")))
    for line in printed.strip("\n").split("\n")[:lines]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(title="gapless", unique_id="gapless")
    # rich would have the browser fetch its font.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def coloured(command: str, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {
        "COLUMNS": "80",
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="where public profiles are")
    profiles = parser.parse_args().profiles
    TARGET.mkdir(exist_ok=True)
    for name, (page, command, lines) in PICTURES.items():
        text = (outputs.PAGES / page).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            outputs.prepare(Path(folder), text, profiles and profiles.resolve())
            if outputs.needs([command]) and not profiles:
                print(f"{name}: left as it is, as it needs public profiles (--profiles)")
                continue
            svg = picture(command, coloured(command, Path(folder)), lines)
        if len(svg.encode()) > LARGEST:
            raise SystemExit(f"{name}: {len(svg.encode()):,} bytes are more than {LARGEST:,}")
        (TARGET / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"docs/images/{name}.svg: {len(svg.encode()):,} bytes")


if __name__ == "__main__":
    main()
