"""What looking for races costs: a training step without side streams, and with every use booked."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import _sheet

IDLE, BOOKED = 1.02, 1.5
"""Times the step without a checker that one may take without side streams, and with them."""
_SOURCE = str(Path(__file__).resolve().parents[1] / "src")


def serve(loop: str, streams: bool) -> None:
    """Run a step for each line of standard input, and print the thread's time for it."""
    import torch
    from _loops import LOOPS

    from gapless.emulate.emulator import Emulator

    torch.set_num_threads(1)
    with Emulator(programme=True) as emulator:
        if hasattr(emulator.core, "races"):
            emulator.core.races.full = streams
        step = LOOPS[loop]("cuda")
        if hasattr(emulator.core, "races"):
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
        """Seconds that one step took."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        asked.write("\n")
        return float(told.readline())

    def end(self) -> None:
        self._process.communicate()


def rows(without: str, rounds: int, loops: list[str]) -> list[list[object]]:
    """One row for each loop; steps of the variants take turns."""
    made: list[list[object]] = []
    for loop in loops:
        servers = [Server(without, loop, False), Server(_SOURCE, loop, False), Server(_SOURCE, loop, True)]
        took: list[list[float]] = [[] for _ in servers]
        for _ in range(rounds):
            for own, server in zip(took, servers, strict=True):
                own.append(server.step())
        for server in servers:
            server.end()
        before, idle, booked = map(statistics.median, took)
        made.append(
            [
                loop,
                *(f"{one * 1e3:.2f}" for one in (before, idle, booked)),
                f"{statistics.median(b / a for a, b in zip(*took[:2], strict=True)):.3f}",
                f"{statistics.median(c / a for a, c in zip(took[0], took[2], strict=True)):.2f}",
            ]
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", metavar="FOLDER", help="the sources of a commit without the checker")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--loops", default="", help="beginnings of the names of loops, with commas")
    parser.add_argument("--serve", metavar="LOOP")
    parser.add_argument("--streams", action="store_true")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.streams)
        return
    from _loops import LOOPS

    loops = [name for name in LOOPS if name.startswith(tuple(options.loops.split(",")))]
    text = _sheet.header(
        "What looking for races costs",
        "python benchmarks/races.py --without FOLDER",
        "time of the thread that trains, a step of each variant in turn, each in a process of its own, "
        f"{options.rounds} steps; medians, and medians of the ratios of neighbouring steps; as `gapless "
        "check` emulates. Without: the last commit before the checker. With streams: every use is booked, "
        "as it is once a script makes a stream",
    )
    text += _sheet.table(
        [
            "loop",
            "without, ms",
            "no streams, ms",
            "with streams, ms",
            "no streams / without",
            "with / without",
        ],
        made := rows(options.without or _SOURCE, options.rounds, loops),
    )
    idle, booked = (max(float(str(row[at])) for row in made) for at in (-2, -1))
    text += (
        f"\nThe bounds are {IDLE:g} without streams and {BOOKED:g} with them: the largest are "
        f"{idle:.3f} and {booked:.2f}.\n"
    )
    print(_sheet.write("races", text).read_text())


if __name__ == "__main__":
    main()
