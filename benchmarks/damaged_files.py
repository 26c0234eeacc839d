"""What `gapless show` says of saved files that were damaged: sessions, profiles, memory runs, diagnoses.

    python benchmarks/damaged_files.py                    # 10,000 versions of the files in tests/model/saved
    python benchmarks/damaged_files.py FOLDER             # of the saved files in FOLDER
    python benchmarks/damaged_files.py FOLDER --write     # writes benchmarks/sheets/damaged_files.md

Bytes are flipped, ends cut off, fields dropped, numbers replaced by -1, 2**63 and others, and values nested
without end (`tests/damaging.py`). Each version is shown in a format, in turn. It fails with a traceback,
after more than 20 seconds of processor time, above 1 GB of memory, or where a refusal is not one line. Exits
with 1 where any version fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
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
from pathlib import Path
from typing import Any

import _sheet

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from damaging import damaged

SECONDS = 20
BYTES = 1 << 30
TOGETHER = 50
"""Versions that one process shows: what they take is measured as the largest of them."""


@dataclass(frozen=True)
class Result:
    """What became of one version of `file`."""

    file: str
    kind: str
    seed: int
    status: int
    seconds: float
    error: str = ""


def look(data: bytes, form: str, path: Path) -> tuple[int, str]:
    """The exit status, and what is wrong with how it was shown; "" where nothing is."""
    from gapless.commands import main

    path.write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["show", "-f", form, str(path)])
    except BaseException:
        return -1, traceback.format_exc().strip().splitlines()[-1]
    lines = err.getvalue().count("\n")
    return status, "" if lines == (status != 0) and status in (0, 3) else f"status {status}, {lines} lines"


def _late(*_: Any) -> None:
    raise TimeoutError("it hangs")


def some(files: Sequence[Path], seeds: Sequence[int], into: Any) -> None:
    """Show a version for each of `seeds`, in a process; results go to the queue `into`."""
    from gapless.render import formats

    forms = list(formats())
    signal.signal(signal.SIGALRM, _late)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            file = files[seed % len(files)]
            data = file.read_bytes()
            kind = json.loads(data)["format"].removeprefix("gapless-")
            begin = time.process_time()
            signal.alarm(10 * SECONDS)  # of which others may use most
            status, error = look(
                damaged(data, seed), forms[seed // len(files) % len(forms)], Path(folder, "x.json")
            )
            signal.alarm(0)
            found.append(Result(file.name, kind, seed, status, time.process_time() - begin, error))
    into.put((found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def sheet(found: Sequence[Result], memory: int, command: str) -> str:
    """What became of all of them."""
    method = (
        f"{len(found):,} damaged versions of {len({one.file for one in found})} saved files, each shown in "
        "one of the formats"
    )
    failed = [one for one in found if one.error or one.seconds > SECONDS]
    text = _sheet.header("Damaged saved files", command, method)
    text += (
        f"- tracebacks: {sum(one.status < 0 for one in found)}; failed in all: {len(failed)}; longest "
        f"{max(one.seconds for one in found):.1f} s; most memory of a process {memory >> 20} MB\n\n"
    )
    kinds = Counter(one.kind for one in found)
    rows: list[list[object]] = []
    for kind, count in sorted(kinds.items()):
        own = [one for one in found if one.kind == kind]
        rows.append([
            kind, f"{count:,}", sum(one.status == 0 for one in own), sum(one.status == 3 for one in own),
            f"{max(one.seconds for one in own):.1f}", sum(bool(one.error) for one in own),
        ])  # fmt: skip
    text += _sheet.table(["kind", "versions", "shown", "refused in one line", "longest (s)", "failed"], rows)
    for one in failed:
        text += f"\n- {one.file}, seed {one.seed}: {one.error}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=TESTS / "model" / "saved")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    fork = multiprocessing.get_context("fork")
    queue, found, memory = fork.Queue(), [], 0
    batches = [range(at, min(at + TOGETHER, options.count)) for at in range(0, options.count, TOGETHER)]
    waiting = 0
    while batches or waiting:
        while batches and waiting < options.jobs:
            fork.Process(target=some, args=(files, batches.pop(0), queue)).start()
            waiting += 1
        results, most = queue.get(timeout=10 * TOGETHER * SECONDS)
        waiting -= 1
        found += results
        memory = max(memory, most)
    words = " ".join(["python benchmarks/damaged_files.py", *(["--write"] if options.write else [])])
    text = sheet(found, memory, words)
    print(text)
    if options.write:
        print(_sheet.write("damaged_files", text))
    late = any(one.error or one.seconds > SECONDS for one in found)
    return 1 if memory > BYTES or late else 0


if __name__ == "__main__":
    sys.exit(main())
