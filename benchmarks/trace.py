"""What reading and explaining a saved profile costs, beside a bare decode and another reader.

A real profile, repeated with shifted times and numbers, gives files of 1, 5 and 20 times its size. Every
measurement runs in a process of its own; the programs take turns, so that what else the machine does hits
all of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import _sheet

NUMBERS = re.compile(
    rb'"(ts|correlation|External id|external id|id|Ev Idx|Python id|Python parent id)":\s*(\d+)(\.\d+)?'
)
OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')

BARE = """
import gc, sys, time
import msgspec
from gapless.trace.events import TraceEvent

class Document(msgspec.Struct, gc=False):
    traceEvents: list[TraceEvent]

gc.disable()
began = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    document = msgspec.json.decode(file.read(), type=Document)
"""
READ = """
import sys, time
from gapless.trace.read import read

began = time.perf_counter(), time.process_time()
timeline = read(sys.argv[1])
"""
REPORTED = """
import io, sys, time
from gapless.analyze.profile.building import profile_file
from gapless.analyze.profile.profile_report import report_run
from gapless.render import Style, renderer

render = renderer("json")
began = time.perf_counter(), time.process_time()
render(report_run([profile_file(sys.argv[1])]), Style())
"""
HTA = """
import os, sys, time
from hta.trace_analysis import TraceAnalysis

began = time.perf_counter(), time.process_time()
TraceAnalysis(trace_files={0: os.path.abspath(sys.argv[1])}, trace_dir=os.path.dirname(sys.argv[1]))
"""
REPORT = """
import json, os, resource
print(json.dumps({
    "wall": time.perf_counter() - began[0],
    "cpu": time.process_time() - began[1],
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}), file=sys.__stdout__)
"""
FULL = "gapless trace --no-prices"
Run = Callable[[Path], dict[str, float]]


def repeat_profile(source: Path, copies: int, target: Path) -> int:
    """Write `source` `copies` times over into `target`; return the number of events."""
    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    opening = OPENING.search(data)
    assert opening is not None
    # Latin-1 has one byte per letter, so text positions are file positions.
    events, end = json.JSONDecoder().raw_decode(data.decode("latin-1"), opening.end() - 1)
    end -= 1
    body = data[opening.end() : end].strip()
    times = [float(event["ts"]) for event in events if "ts" in event]
    longer = int(max(times) - min(times)) + 10_000_000
    more = max(int(number[2]) for number in NUMBERS.finditer(body) if number[1] != b"ts") + 1
    with open(target, "wb") as file:
        file.write(data[: opening.end()] + b"\n")
        for copy in range(copies):
            file.write(b",\n" if copy else b"")
            file.write(_shifted(body, copy * longer, copy * more))
        file.write(b"\n" + data[end:])
    return len(events) * copies


def _shifted(body: bytes, time: int, number: int) -> bytes:
    def shift(match: re.Match[bytes]) -> bytes:
        by = time if match[1] == b"ts" else number
        return b'"%s": %d%s' % (match[1], int(match[2]) + by, match[3] or b"")

    return NUMBERS.sub(shift, body) if number else body


def _in_process(call: Callable[..., int], *args: object) -> int:
    """Call in a new process: a child inherits the parent's peak memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *args).result()


def measure_inside(program: str, python: str = sys.executable) -> Run:
    """Return a function that measures what `program` does after its imports."""

    def run(path: Path) -> dict[str, float]:
        words = [python, "-c", program + REPORT, str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result

    return run


def measure_command(path: Path, *options: str) -> dict[str, float]:
    """Measure ``gapless trace`` from start to end of its process, workers included."""
    words = [sys.executable, "-m", "gapless", "trace", "-q", *options, str(path)]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"gapless trace failed: {said}")
    wall = time.perf_counter() - began
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}


def measure_medians(programs: dict[str, Run], path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return medians over `rounds` of every program, in turn."""
    runs_of: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, run in programs.items():
            runs_of[name].append(run(path))
    keys = ("wall", "cpu", "peak")
    return {n: {k: statistics.median(run[k] for run in runs) for k in keys} for n, runs in runs_of.items()}


def rows(medians: dict[str, dict[str, float]], size: float) -> list[list[object]]:
    bare = medians["bare decode"]
    table: list[list[object]] = []
    for name, median in medians.items():
        slower = medians.get("HTA 0.5.0, load", {}).get("wall", 0.0) / median["wall"]
        table.append(
            [
                name,
                f"{median['wall']:.2f}",
                f"{median['cpu']:.2f}",
                f"{median['peak']:.0f}",
                f"{median['peak'] / size:.2f}",
                f"{median['wall'] / bare['wall']:.2f}",
                f"{slower:.1f}" if slower and not name.startswith("HTA") else "",
            ]
        )
    return table


COLUMNS = ["", "wall, s", "CPU, s", "peak, MB", "peak / file", "wall / bare decode", "HTA's wall / this"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, help="a real profile with many events, plain or gzip")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--peers", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis 0.5.0"
    )
    parser.add_argument("--growth", type=int, nargs="*", default=[1, 5, 20])
    options = parser.parse_args()
    programs: dict[str, Run] = {"bare decode": measure_inside(BARE), "gapless, read": measure_inside(READ)}
    programs["gapless, read and report"] = measure_inside(REPORTED)
    programs[FULL] = lambda path: measure_command(path, "--no-prices")
    programs["gapless trace, with prices"] = measure_command
    if options.peers:
        programs["HTA 0.5.0, load"] = measure_inside(HTA, options.peers)
    text, growth = "", list[list[object]]()
    with tempfile.TemporaryDirectory() as folder:
        for copies in options.growth:
            path = Path(folder) / f"{copies}.json"
            events = _in_process(repeat_profile, options.trace, copies, path)
            size = path.stat().st_size / (1 << 20)
            part = programs if copies <= 5 else {k: v for k, v in programs.items() if "gapless" in k}
            medians = measure_medians(part, path, options.rounds if copies <= 5 else min(options.rounds, 3))
            if "bare decode" in medians:
                text += f"## {size:.0f} MB, {events:,} events\n\n"
                text += _sheet.table(COLUMNS, rows(medians, size)) + "\n"
            growth.append(_growth(medians, events, size))
            path.unlink()
    text += "## Cost as files grow\n\n"
    columns = ["file, MB", "events", "read, CPU µs per event", "peak / file"]
    columns += ["command, CPU µs per event", "peak / file"]
    text += _sheet.table(columns, growth)
    # Last: torch, which the header asks for its version, would count as memory of every later process.
    header = _sheet.header(
        "Reading and explaining a profile",
        "python benchmarks/trace.py " + " ".join(_command_words(options)),
        "a real profile repeated with shifted times and numbers; every run in a fresh process, the programs "
        f"in turn, medians of {options.rounds}; `bare decode` is msgspec into the same typed structs, the "
        "whole file at once; the command is measured from the start of its process to the end, the others "
        "after their imports; peak is the largest resident set of the process",
    )
    text += "\nTraceLens is not measured: the package of that name on the Python index is another project.\n"
    print(_sheet.write("trace", header + text).read_text())


def _growth(medians: dict[str, dict[str, Any]], events: int, size: float) -> list[object]:
    row: list[object] = [f"{size:.0f}", f"{events:,}"]
    for name in ("gapless, read", FULL):
        row += [f"{medians[name]['cpu'] / events * 1e6:.2f}", f"{medians[name]['peak'] / size:.2f}"]
    return row


def _command_words(options: argparse.Namespace) -> list[str]:
    """Return the command line without paths of this machine."""
    words = [options.trace.name, f"--rounds {options.rounds}"]
    return words + (["--peers PYTHON"] if options.peers else [])


if __name__ == "__main__":
    main()
