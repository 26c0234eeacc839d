"""What the page of a large profile costs: its size, how soon it opens, and how it moves.

A real profile, repeated with shifted times and numbers, gives files of 1 and 5 times its size. The page of
each is opened from disk in headless Chromium and moved frame by frame.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from trace import repeat_profile
from typing import Any

import _sheet

READY = "() => document.documentElement.dataset.ready === 'yes'"
MOVE = """
async ([share, seconds]) => {
  const [low, high] = gaplessStages[0].whole;
  const width = (high - low) * share;
  const times = [];
  const began = performance.now();
  let before = began;
  while (before - began < seconds * 1000) {
    const at = low + ((before - began) / (seconds * 1000)) * (high - low - width);
    gaplessStages[0].show(at, at + width);
    const now = await new Promise((then) => requestAnimationFrame(() => then(performance.now())));
    times.push(now - before);
    before = now;
  }
  times.sort((a, b) => a - b);
  return [1000 * times.length / (before - began), 1000 / times[Math.floor(times.length * 0.95)]];
}
"""
"""Frames per second while a view of that share pans over the profile: mean, and slowest twentieth.

Each frame draws once: the timeline requests the same frame first.
"""
KINDS = {"nine tenths": 0.9, "a tenth": 0.1, "a two-hundredth": 0.005}


def page_of(trace: Path, target: Path) -> float:
    """Write the page of `trace` with the command; return the seconds."""
    began = time.perf_counter()
    words = [sys.executable, "-m", "gapless", "trace", "-q", "--no-prices", "-f", "html", str(trace)]
    with open(target, "wb") as file:
        subprocess.run(words, stdout=file, check=True)
    return time.perf_counter() - began


def measure_page(browser: Any, file: Path, rounds: int, section: str = "timeline") -> dict[str, Any]:
    """Return the seconds until the first picture of `section`, frames per second, and its data."""
    opened = []
    for _ in range(rounds):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        began = time.perf_counter()
        page.goto(file.as_uri(), wait_until="load")
        page.wait_for_function(READY)
        page.evaluate("() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
        opened.append(time.perf_counter() - began)
        if len(opened) < rounds:
            context.close()
    page.evaluate("name => document.getElementById(name).scrollIntoView({behavior: 'instant'})", section)
    frames = {kind: page.evaluate(MOVE, [share, 4]) for kind, share in KINDS.items()}
    data = page.evaluate("name => JSON.parse(document.getElementById(name + '-data').textContent)", section)
    context.close()
    return {"opened": opened, "frames": frames, "data": data}


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield the installed browser, headless."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


def row(trace: Path, events: int, folder: Path, browser: Any, rounds: int) -> list[object]:
    file = folder / "report.html"
    seconds = page_of(trace, file)
    page = measure_page(browser, file, rounds)
    windows = page["data"]["lanes"]["windows"]
    boxes = sum(len(row["start"]) for window in windows for row in window["boxes"])
    frames = [f"{mean:.0f} ({slow:.0f})" for mean, slow in page["frames"].values()]
    return [
        f"{trace.stat().st_size / (1 << 20):.0f}",
        f"{events:,}",
        f"{seconds:.1f}",
        f"{file.stat().st_size / 1e6:.2f}",
        f"{boxes:,}",
        f"{statistics.median(page['opened']):.2f}",
        f"{max(page['opened']):.2f}",
        *frames,
    ]


COLUMNS = ["trace, MB", "events", "made in, s", "page, MB", "boxes", "opens in, s", "slowest, s"]
COLUMNS += [f"frames/s, {kind} in view" for kind in KINDS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="a real profile with many events, plain or gzip")
    parser.add_argument("--growth", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        for copies in options.growth:
            path = Path(name) / f"{copies}.json"
            events = repeat_profile(options.trace, copies, path)
            rows.append(row(path, events, Path(name), browser, options.rounds))
            path.unlink()
        version = browser.version
    header = _sheet.header(
        "The page of a large profile",
        f"python benchmarks/page.py {options.trace.name}",
        "a real profile repeated with shifted times and numbers; `gapless trace --no-prices -f html` from "
        f"start to end; the page opened from disk in headless Chromium {version} without a GPU, 1440 x 900, "
        "from the request to the second frame after the timeline is there, median and slowest of "
        f"{options.rounds}; then moved over it for four seconds, one move each frame: frames per second, "
        "and in brackets those of the slowest twentieth (60 is the most there is)",
    )
    print(_sheet.write("page", header + _sheet.table(COLUMNS, rows)).read_text())


if __name__ == "__main__":
    main()
