"""What looking for races costs: a training step without side streams, and with every use booked."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _sheet

LOOP_SECONDS, MIN_ROUNDS = 45.0, 8
"""Most seconds per loop once its processes run, and rounds it gets in any case."""
MAX_IDLE_RATIO, MAX_CHECKED_RATIO = 1.02, 1.5
"""Bounds on the step's time relative to the step without a checker: without side streams, and with."""
_SOURCE = Path(__file__).resolve().parents[1] / "src"
_TELLS = re.compile(r"\braces\.\w+")


class WithoutChecker(ast.NodeTransformer):
    """Removes statements that only call the checker."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        called = node.value.func if isinstance(node.value, ast.Call) else node.value
        return ast.Pass() if _TELLS.search(ast.unparse(called)) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if not _TELLS.search(ast.unparse(node.test)):
            return self.generic_visit(node)
        return node.orelse or [ast.Pass()]


def without_checker(folder: Path) -> str:
    """Write the sources without the emulation's calls of the checker to `folder`; return its path."""
    shutil.copytree(_SOURCE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / "gapless" / "emulation").rglob("*.py"):
        text = path.read_text()
        if _TELLS.search(text) and "races" not in path.parent.name:
            path.write_text(ast.unparse(WithoutChecker().visit(ast.parse(text))))
    return str(folder)


def serve_steps(loop: str, streams: bool) -> None:
    """Run a step for each line of standard input; print its thread seconds."""
    import torch
    from _loops import LOOPS

    from gapless.emulation.emulator import Emulator
    from gapless.emulation.options import EmulatorOptions

    torch.set_num_threads(1)
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        emulator.core.races.full = streams
        step = LOOPS[loop]("cuda")
        emulator.core.races.full = streams  # this file's own words begin no books
        for _ in range(3):
            step()
        for _ in sys.stdin:
            began = time.thread_time()
            step()
            print(time.thread_time() - began, flush=True)


class Server:
    """A process that runs steps on demand, from the sources in a folder."""

    def __init__(self, source: str, loop: str, streams: bool) -> None:
        words = [sys.executable, __file__, "--serve", loop, *(["--streams"] if streams else [])]
        env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def step(self) -> float:
        """Run one step and return its seconds."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\n")
        return float(stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def rows(bare: str, rounds: int, loops: list[str]) -> list[list[object]]:
    """Return a row per loop; steps of the variants take turns, those of `bare` first."""
    source = str(_SOURCE)
    table_rows: list[list[object]] = []
    for loop in loops:
        servers = [Server(bare, loop, False), Server(source, loop, False), Server(source, loop, True)]
        took: list[list[float]] = [[] for _ in servers]
        end = time.monotonic() + LOOP_SECONDS
        for done in range(rounds):
            if done >= MIN_ROUNDS and time.monotonic() > end:
                break
            for own, server in zip(took, servers, strict=True):
                own.append(server.step())
        for server in servers:
            server.end()
        before, idle, booked = map(statistics.median, took)
        table_rows.append(
            [
                loop,
                len(took[0]),
                *(f"{seconds * 1e3:.2f}" for seconds in (before, idle, booked)),
                f"{statistics.median(b / a for a, b in zip(*took[:2], strict=True)):.3f}",
                f"{statistics.median(c / a for a, c in zip(took[0], took[2], strict=True)):.2f}",
            ]
        )
    return table_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--loops", default="", help="beginnings of the names of loops, with commas")
    parser.add_argument("--serve", metavar="LOOP")
    parser.add_argument("--streams", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve_steps(options.serve, options.streams)
        return
    from _loops import LOOPS

    loops = [name for name in LOOPS if name.startswith(tuple(options.loops.split(",")))]
    text = _sheet.header(
        "What looking for races costs",
        "python benchmarks/races.py",
        "time of the thread that trains, a step of each variant in turn, each in a process of its own, "
        f"{options.rounds} rounds or {LOOP_SECONDS:g} s; medians, also of the ratios of neighbouring steps; "
        "as `gapless check` emulates. Without: the same sources less each statement that tells the checker, "
        "or asks it. With streams: every use is booked, as it is once a script makes a stream",
    )
    with tempfile.TemporaryDirectory() as folder:
        table_rows = rows(without_checker(Path(folder)), options.rounds, loops)
    text += _sheet.table(
        [
            "loop",
            "rounds",
            "without, ms",
            "no streams, ms",
            "with streams, ms",
            "no streams / without",
            "with / without",
        ],
        table_rows,
    )
    idle, booked = (max(float(str(row[at])) for row in table_rows) for at in (-2, -1))
    text += (
        f"\nThe bounds are {MAX_IDLE_RATIO:g} without streams and {MAX_CHECKED_RATIO:g} with them: the "
        f"largest are {idle:.3f} and {booked:.2f}.\n"
    )
    print(_sheet.write("races", text).read_text())


if __name__ == "__main__":
    main()
