"""What Gapless says of damaged files: sessions, profiles, traces, snapshots, memory runs, diagnoses.

    python benchmarks/damaged_files.py                    # 10,000 versions of what the commands save
    python benchmarks/damaged_files.py --write            # writes benchmarks/sheets/damaged_files.md
    python benchmarks/damaged_files.py --count 40 --first 800     # those of the seeds 800 to 839
    python benchmarks/damaged_files.py --minutes 20       # as many as are read in that time

The files are made first, with each command that saves one (`_saved_inputs.py`). Bytes are flipped, ends cut
off, fields dropped, numbers replaced by -1, 2**63 and others, and values nested without end
(`tests/damage.py`). Each version is read by the commands that read such files, in turn, and in each format
in turn. It fails with a traceback, after more than 20 seconds of processor time, above 1 GB of memory, where
a refusal is not one line, or where the verdict is not that of the whole file and nothing says that the file
was changed (the files of earlier versions have no checksum, by which that is known). Exits with 1 where any
version fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import _sheet
from _saved_inputs import TESTS, make

sys.path.insert(0, str(TESTS))

from damage import damaged

MAX_SECONDS = 20
MAX_BYTES = 1 << 30
VERSIONS_PER_PROCESS = 50
"""Memory is measured per process, so as the maximum over these versions."""
SAVED = ("session", "profile", "memory", "loader")
READERS = {
    "session": ["show", "compare"],
    "profile": ["show", "compare", "trace"],
    "memory": ["memory", "show", "compare"],
    "loader": ["loader", "show"],
    "trace": ["trace", "trace", "compare", "show"],
    "snapshot": ["memory", "memory", "compare", "show"],
}
"""Commands that read each kind of file; other kinds are shown and compared."""


@dataclass(frozen=True)
class Input:
    """An undamaged file: its kind and content, and its verdict sentences if it has a checksum."""

    path: Path
    kind: str
    data: bytes
    verdicts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The result of one version of `file`; `differs` if its verdict is not the whole file's."""

    file: str
    kind: str
    seed: int
    command: str
    status: int
    seconds: float
    error: str = ""
    differs: bool = False

    @property
    def failed(self) -> str:
        """What is wrong with the result; "" if nothing is."""
        return self.error or (f"{self.seconds:.0f} s" if self.seconds > MAX_SECONDS else "")


def inputs(files: Sequence[Path]) -> list[Input]:
    """Return the `files` with their kinds and verdicts."""
    from gapless.files.kinds import kind_of

    kept = []
    for path in files:
        kind, verdicts = kind_of(str(path)), ()
        if kind in SAVED and not path.name.startswith("earlier"):
            verdicts = _verdicts(str(path))[0]
        kept.append(Input(path, kind, path.read_bytes(), verdicts))
    return kept


def _verdicts(path: str) -> tuple[tuple[str, ...], bool]:
    """Return the verdict sentences on a saved file, and whether each notes that the file was changed."""
    from gapless.commands.show import reports
    from gapless.model._disk import CHANGED_NOTE

    shown = reports(path)
    return tuple(report.verdict.sentence for report in shown), all(
        CHANGED_NOTE in report.notes for report in shown
    )


def words(file: Input, turn: int, path: str) -> list[str]:
    """Return the command line, chosen by `turn`, that reads `path`, a version of `file`."""
    from gapless.render import formats

    forms, readers = formats(), READERS.get(file.kind, ["show", "compare"])
    command, form = readers[turn % len(readers)], list(forms)[turn // len(readers) % len(forms)]
    quiet = ["-q"] if command != "show" else []
    whole = [str(file.path)] if command == "compare" else []
    return [command, *quiet, "-f", form, *whole, path]


def run_command(command: Sequence[str]) -> tuple[int, str]:
    """Run `command`; return its exit status and what is wrong with its output, or ""."""
    from gapless.commands import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(command))
    except BaseException:
        trace = traceback.format_exc().strip().splitlines()
        place = next((line.strip() for line in reversed(trace) if line.startswith("  File")), "")
        return -1, f"{trace[-1][:200]} ({place})"
    lines = err.getvalue().count("\n")
    right = lines == 0 if status == 0 else status in (2, 3) and 1 <= lines <= 2
    return status, "" if right else f"status {status}, {lines} lines: {err.getvalue()[:200]}"


def _raise_timeout(*_: Any) -> None:
    raise TimeoutError(f"more than {MAX_SECONDS} s")


def read_version(file: Input, seed: int, turn: int, path: Path) -> Result:
    """Read the version of `file` damaged with `seed`, written to `path`."""
    path.write_bytes(damaged(file.data, seed))
    command = words(file, turn, str(path))
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 2 * MAX_SECONDS)
    status, error = run_command(command)
    seconds = time.process_time() - begin
    differs = False
    if file.verdicts and not error and status == 0:
        verdicts, said = _verdicts(str(path))
        differs = verdicts != file.verdicts
        error = f"verdict without a word: {verdicts}" if differs and not said else ""
    signal.setitimer(signal.ITIMER_PROF, 0)
    shown = " ".join(command).replace(str(path), "FILE").replace(str(file.path), "WHOLE")
    return Result(file.path.name, file.kind, seed, shown, status, seconds, error, differs)


def read_versions(files: Sequence[Input], seeds: Sequence[int], into: Connection) -> None:
    """Read a version for each seed, in a child process; send results `into` the pipe."""
    signal.signal(signal.SIGPROF, _raise_timeout)
    resource.setrlimit(resource.RLIMIT_DATA, (4 * MAX_BYTES, 4 * MAX_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            file = files[seed % len(files)]
            path = Path(folder, f"damaged{''.join(file.path.suffixes)}")
            version = read_version(file, seed, seed // len(files), path)
            into.send((version, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    into.close()


def read_all(
    files: Sequence[Input], seeds: Sequence[int], jobs: int, seconds: float
) -> tuple[list[Result], int]:
    """Read the versions of all `seeds`; return the results and the largest memory of a process, bytes.
    After `seconds` no more are begun.

    Raises:
        RuntimeError: a process died.
    """
    for file in files:  # load all readers once, before forking
        for turn in range(len(READERS.get(file.kind, ()))):
            run_command(words(file, turn, str(file.path)))
    until = time.monotonic() + seconds
    fork = multiprocessing.get_context("fork")
    batches = [seeds[at : at + VERSIONS_PER_PROCESS] for at in range(0, len(seeds), VERSIONS_PER_PROCESS)]
    pipes: dict[Connection, int] = {}
    results: list[Result] = []
    memory = 0
    while batches or pipes:
        if time.monotonic() > until:
            batches.clear()
        while batches and len(pipes) < jobs:
            batch = batches.pop(0)
            receiver, sender = fork.Pipe(duplex=False)
            fork.Process(target=read_versions, args=(files, batch, sender), daemon=True).start()
            sender.close()
            pipes[receiver] = len(batch)
        for receiver in wait(list(pipes)):
            try:
                version, most = receiver.recv()
            except EOFError:
                if pipes.pop(receiver):
                    raise RuntimeError(f"a process died after {len(results)} versions") from None
                continue
            pipes[receiver] -= 1
            results.append(version)
            if version.failed:
                print(f"{version.file}, seed {version.seed}: {version.failed}", file=sys.stderr, flush=True)
            memory = max(memory, most)
    return results, memory


def sheet(results: Sequence[Result], memory: int, command: str) -> str:
    """Return the sheet of all results."""
    method = (
        f"{len(results):,} damaged versions of {len({result.file for result in results})} files, each read "
        "by one command in one format, in turn; verdicts beside those of the whole files"
    )
    failed = [result for result in results if result.failed]
    text = _sheet.header("Damaged files", command, method)
    text += (
        f"- tracebacks: {sum(result.status < 0 for result in results)}; failed in all: {len(failed)}; "
        f"longest {max(result.seconds for result in results):.1f} s; most memory of a process "
        f"{memory >> 20} MB\n\n"
    )
    rows: list[list[object]] = []
    for kind, count in sorted(Counter(result.kind for result in results).items()):
        own = [result for result in results if result.kind == kind]
        rows.append([
            kind or "none of these", f"{count:,}", sum(result.status == 0 for result in own),
            sum(result.status > 0 for result in own), sum(result.differs for result in own),
            f"{max(result.seconds for result in own):.1f}", sum(bool(result.failed) for result in own),
        ])  # fmt: skip
    columns = ["kind", "versions", "read", "refused", "other verdict, and said so", "longest (s)", "failed"]
    text += _sheet.table(columns, rows)
    printed = [result for result in results if result.kind == "report"]
    text += (
        f"\nSaved kinds: {', '.join(SAVED)}; `trace` and `snapshot` are PyTorch's. `report` is what `-f "
        "json` prints of a run, a comparison and a proof: no command reads it back, and "
        f"{sum(result.status > 0 for result in printed):,} of {len(printed):,} versions were refused. "
        "A baseline has no file of its own: `gapless compare` reads two saved runs.\n"
    )
    for result in failed:
        text += f"\n- {result.file}, seed {result.seed}, `gapless {result.command}`: {result.failed}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = inputs(make(Path(folder)))
        seeds = range(options.first, options.first + options.count)
        results, memory = read_all(files, seeds, options.jobs, 60 * options.minutes)
    text = sheet(results, memory, " ".join(["python benchmarks/damaged_files.py", *sys.argv[1:]]))
    print(text)
    if options.write:
        print(_sheet.write("damaged_files", text))
    return 1 if memory > MAX_BYTES or any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
