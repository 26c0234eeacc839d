"""What every benchmark sheet says of itself: hardware, versions, commit, method."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHEETS = HERE / "sheets"


def processor() -> str:
    """The CPU's model name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit measured, marked when the working tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    name = git("rev-parse", "--short", "HEAD") or "unknown"
    return name + (" with uncommitted changes" if git("status", "--porcelain", "--", "../src") else "")


def header(title: str, command: str, method: str) -> str:
    """The opening of a sheet, in Markdown."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return (
        f"# {title}\n\n"
        f"- measured: {date.today().isoformat()}, commit {commit()}, by `{command}`\n"
        f"- hardware: {processor()}, {os.cpu_count()} cores, GPU: {device}\n"
        f"- versions: Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}\n"
        f"- method: {method}\n\n"
    )


def table(columns: list[str], rows: list[list[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(name: str, text: str, folder: Path = SHEETS) -> Path:
    """Write the sheet `name` into `folder` and give its path."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(text)
    return path
