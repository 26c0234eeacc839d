"""Write the pictures of the documentation into `docs/images`: a terminal's as SVG, HTML reports' as JPEG.

    python tools/screenshots.py [--profiles FOLDER]

The commands are those of the pages (`tools/outputs.py`), run with colours. Pictures of terminals name common
fonts and fetch none. Those of reports need Playwright and a Chromium that is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
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
"""By name: the page with the files needed, the command, and the number of lines shown."""
REPORTS = {
    "timeline": ("journeys/loading.md", "gapless trace -q -f html num_workers_0.pt.trace.json.gz", 620),
    "memory": ("journeys/memory.md", "gapless memory -q --search -f html snapshot.pickle", 700),
}
"""By name (also of the section shown): page, command, and the picture's height."""
WIDTH = 1160
MAX_BYTES = 100_000
"""Larger pictures do not belong in the repository."""


def picture(command: str, printed: str, lines: int) -> str:
    """Return the first `lines` of the coloured output `printed` of `command`, as SVG."""
    console = Console(record=True, width=82, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.assemble(("$ ", "bold green"), (command.replace(" -q", ""), "bold")))
    for line in printed.strip("\n").split("\n")[:lines]:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    svg = console.export_svg(title="gapless", unique_id="gapless")
    # rich would have the browser fetch its font.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def run_with_colours(command: str, folder: Path) -> str:
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


def photographs(pages: dict[str, str]) -> dict[str, bytes]:
    """Return a screenshot of the named section of each page."""
    from playwright.sync_api import sync_playwright

    photos = {}
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] if root else [])
        for name, text in pages.items():
            file = Path(folder, f"{name}.html")
            file.write_text(text, encoding="utf-8")
            page = browser.new_page(viewport={"width": WIDTH, "height": REPORTS[name][2]})
            page.goto(f"{file.as_uri()}#{name}")
            page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
            page.evaluate(
                "() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))"
            )
            photos[name] = page.screenshot(type="jpeg", quality=70)
        browser.close()
    return photos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="where public profiles are")
    profiles = parser.parse_args().profiles
    TARGET.mkdir(exist_ok=True)
    for name, (page, command, lines) in PICTURES.items():
        text = shown(name, page, command, profiles)
        if text is not None:
            write(f"{name}.svg", picture(command, text, lines).encode())
    pages = {name: shown(name, page, command, profiles) for name, (page, command, _) in REPORTS.items()}
    printed = {name: text for name, text in pages.items() if text is not None}
    for name, data in (photographs(printed) if printed else {}).items():
        write(f"{name}.jpg", data)


def shown(name: str, page: str, command: str, profiles: Path | None) -> str | None:
    """Return what `command` prints beside the files of `page`; None without the profiles it needs."""
    text = (outputs.PAGES / page).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        outputs.prepare(Path(folder), text, profiles and profiles.resolve())
        if outputs.needs([command]) and not profiles:
            print(f"{name}: left as it is, as it needs public profiles (--profiles)")
            return None
        return run_with_colours(command, Path(folder))


def write(name: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise SystemExit(f"{name}: {len(data):,} bytes are more than {MAX_BYTES:,}")
    (TARGET / name).write_bytes(data)
    print(f"docs/images/{name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
