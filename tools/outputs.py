"""Run the commands that pages of the documentation show, and write what they print into the pages.

    python tools/outputs.py [--profiles FOLDER] [PAGE...]

A page holds, for each of them, a line ``<!-- output: COMMAND -->``, a fenced block, and ``<!-- end -->``.
After the command, ``[1-3, 5]`` keeps these paragraphs of what is printed. A line ``<!-- file: NAME -->``
before a block of Python gives the block a file of that name. Commands run in a folder of their own, which has
``examples``, the page's files, and the public profiles of `PUBLIC` that are in FOLDER. What a command writes
stays there for the next one.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGES = PROJECT / "docs"

PUBLIC = {
    "num_workers_0.pt.trace.json.gz": "kineto-resnet50_num_workers_0-*.json.gz",
    "num_workers_4.pt.trace.json.gz": "kineto-resnet50_num_workers_4-*.json.gz",
    "snapshot.pickle": "select_n-thrashing.pickle",
}
"""Profiles that pages read: the page's name for each, and the pattern of its file in FOLDER."""

OUTPUT = re.compile(
    r"<!-- output: (?P<command>[^\[\]\n]*?)(?: \[(?P<kept>[\d, -]+)\])? -->\n"
    r"```text\n(?P<shown>.*?)```\n<!-- end -->\n",
    re.DOTALL,
)
FILE = re.compile(r"<!-- file: (?P<name>\S+) -->\n```python\n(?P<content>.*?)```\n", re.DOTALL)


SETTINGS = {"COLUMNS": "80", "NO_COLOR": "1", "GAPLESS_HOST": "usual"}
"""Variables that make output independent of the machine."""


@dataclass(frozen=True)
class Output:
    """A command on a page, its selected paragraphs, and the output shown."""

    command: str
    kept: str | None
    shown: str


def outputs(page: str) -> list[Output]:
    """Return the commands shown on `page`, in order."""
    return [Output(match["command"], match["kept"], match["shown"]) for match in OUTPUT.finditer(page)]


def needs(commands: list[str]) -> list[str]:
    """Return the names of the public profiles that `commands` read."""
    return [name for name in PUBLIC if any(name in shlex.split(command) for command in commands)]


def prepare(folder: Path, page: str, profiles: Path | None) -> bool:
    """Put what the commands of `page` need into `folder`; return whether all of it exists."""
    # A copy: printed paths start at the folder.
    shutil.copytree(PROJECT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for match in FILE.finditer(page):
        (folder / match["name"]).write_text(match["content"], encoding="utf-8")
    complete = True
    for name in needs([output.command for output in outputs(page)]):
        source = next(iter(sorted(profiles.rglob(PUBLIC[name]))), None) if profiles else None
        if source is None:
            complete = False
        else:
            (folder / name).symlink_to(source)
    return complete


def words(command: str, *options: str) -> tuple[str, ...]:
    """Return Python's arguments for `command`, with `options` after its first two words."""
    first, second, *rest = shlex.split(command)
    return ("-m", first, second, *options, *rest)


def run(command: str, folder: Path, *options: str) -> str:
    """Return the standard output of `command` run in `folder`, with `options` after its first two words."""
    environment = {**os.environ, **SETTINGS, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *words(command, *options)],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def kept(printed: str, which: str | None) -> str:
    """Return the wanted paragraphs of `printed`, with … for those left out."""
    paragraphs = [paragraph for paragraph in re.split(r"\n{2,}", printed.strip("\n")) if paragraph]
    wanted = sorted(_numbers(which)) if which else list(range(1, len(paragraphs) + 1))
    if wanted[-1] > len(paragraphs):
        raise SystemExit(f"paragraph {wanted[-1]} is asked for, and there are {len(paragraphs)}:\n{printed}")
    parts: list[str] = []
    last = 0
    for number in wanted:
        if number > last + 1:
            parts.append("…")
        parts.append("\n".join(line.rstrip() for line in paragraphs[number - 1].split("\n")))
        last = number
    if last < len(paragraphs):
        parts.append("…")
    return "\n\n".join(parts)


def _numbers(which: str) -> Iterator[int]:
    for part in which.split(","):
        first, _, last = part.strip().partition("-")
        yield from range(int(first), int(last or first) + 1)


def renew(page: str, folder: Path) -> str:
    """Return `page` with the current output of its commands."""

    def again(match: re.Match[str]) -> str:
        text = kept(run(match["command"], folder, "-q"), match["kept"])
        selection = f" [{match['kept']}]" if match["kept"] else ""
        return (
            f"<!-- output: {match['command']}{selection} -->\n"
            f"```text\n$ {match['command']}\n{text}\n```\n<!-- end -->\n"
        )

    return OUTPUT.sub(again, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="where public profiles are")
    parser.add_argument("pages", nargs="*", type=Path)
    args = parser.parse_args()
    for path in args.pages or (PROJECT / "README.md", *sorted(PAGES.rglob("*.md"))):
        page = path.read_text(encoding="utf-8")
        if not outputs(page):
            continue
        with tempfile.TemporaryDirectory() as name:
            if not prepare(Path(name), page, args.profiles and args.profiles.resolve()):
                print(f"{path}: left as it is, as it needs public profiles (--profiles)")
                continue
            path.write_text(renew(page, Path(name)), encoding="utf-8")
            print(f"{path}: {len(outputs(page))} commands")


if __name__ == "__main__":
    main()
