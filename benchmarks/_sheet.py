"""What every benchmark sheet says of itself: hardware, versions, commit, method."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHEETS = HERE / "sheets"


def processor() -> str:
    """Return the CPU's model name, or what the platform says."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """Return the measured commit, marked if the working tree differs; MEASURED_COMMIT overrides it."""
    if "MEASURED_COMMIT" in os.environ:
        return os.environ["MEASURED_COMMIT"]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + (" with uncommitted changes" if git("status", "--porcelain", "--", "../src") else "")


def facts() -> dict[str, str]:
    """Return the date, commit, hardware and versions of a measurement made here and now."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "hardware": f"{processor()}, {os.cpu_count()} cores, GPU: {device}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}",
    }


def header(title: str, command: str, method: str, measured: Sequence[dict[str, str]] = ()) -> str:
    """Return the opening of a sheet, in Markdown. `measured` are the facts of what the sheet shows; left out,
    those of this process."""
    every = measured or [facts()]

    def distinct(name: str) -> str:
        return "; ".join(dict.fromkeys(entry[name] for entry in every))

    return (
        f"# {title}\n\n"
        f"- measured: {distinct('date')}, commit {distinct('commit')}, by `{command}`\n"
        f"- hardware: {distinct('hardware')}\n"
        f"- versions: {distinct('versions')}\n"
        f"- method: {method}\n\n"
    )


def table(columns: list[str], rows: list[list[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(name: str, text: str, folder: Path = SHEETS) -> Path:
    """Write the sheet `name` into `folder`; return its path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(text)
    return path


def fit_main(doc: str, name: str, fit: Callable[[Path], None], text: Callable[[Path], str]) -> None:
    """Run the command line of a script that fits constants to the tables in a folder or reports their errors:
    ``FOLDER``, ``--fit`` to print the constants, ``--write`` to keep the sheet `name`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    if options.fit:
        fit(options.folder)
        return
    sheet = text(options.folder)
    if options.write:
        write(name, sheet)
    print(sheet)


def main(
    name: str, about: str, text_of: Callable[[argparse.Namespace], str], **options: dict[str, Any]
) -> None:
    """Print the sheet that `text_of` returns for the command's arguments; ``--write`` saves it.

    `options` are the arguments by name, with the settings `argparse` takes; those without a default are
    positional.
    """
    import torch

    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, settings in options.items():
        parser.add_argument(f"--{option}" if "default" in settings else option, **settings)
    parser.add_argument("--write", action="store_true", help=f"write it to sheets/{name}.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    text = text_of(arguments)
    if arguments.write:
        write(name, text)
    print(text)
