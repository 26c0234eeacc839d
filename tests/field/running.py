"""Running ``gapless check`` as users do: in a process of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fork_server

_REPORT = '{"format":"gapless-report"'


@dataclass(frozen=True)
class Outcome:
    """A finished run: its exit status, what the script printed, and the report."""

    status: int
    printed: str
    errors: str
    report: dict[str, Any]


def check(
    script: Path,
    *arguments: str,
    options: tuple[str, ...] = ("--steps", "all"),
    ranks: int = 0,
    folder: Path | None = None,
    **environment: str,
) -> Outcome:
    """Check `script`; with `ranks` under torchrun, in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    words = [*launcher, "-m", "gapless", "check", "--no-loader", *options]
    done = fork_server.run(
        (*words, "-q", "-f", "json", str(script), *arguments),
        folder or Path.cwd(),
        **environment,
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith(_REPORT)]
    assert len(reports) == 1, f"{len(reports)} reports, exit status {done.returncode}\n{done.stderr[-4000:]}"
    printed = "\n".join(line for line in done.stdout.splitlines() if not line.startswith(_REPORT))
    return Outcome(done.returncode, printed, done.stderr, json.loads(reports[0]))
