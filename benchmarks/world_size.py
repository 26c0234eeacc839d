"""One rank of 8, 64 and 1024 in one process: time and memory of the check; and beside two real ranks."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _sheet

from gapless.model import Session
from gapless.model.memory import ALLOC, FREE, MemoryRun
from gapless.model.session import load
from gapless.model.wording import size

HERE = Path(__file__).resolve().parent
FIELD = HERE.parent / "tests" / "field" / "scripts"
SCRIPT = str(HERE / "_ranks.py")
LLAMA = str(HERE / "_llama.py")
SIZES = (8, 64, 1024)
BESIDE = {
    "DDP (`ddp.py`)": (str(FIELD / "ddp.py"),),
    "fully_shard, bf16, clipping (`fsdp2.py`)": (str(FIELD / "fsdp2.py"),),
    "decoder, fully_shard (`_ranks.py`)": (SCRIPT,),
    "decoder, tensor parallel (`_ranks.py`)": (SCRIPT, "--tensor-parallel", "2"),
}


def check(
    *words: str, launcher: tuple[str, ...] = (), **environment: str
) -> tuple[dict[str, Any], float, float]:
    """Run a check; return its report, CPU seconds, and peak resident megabytes."""
    command = [sys.executable, "-W", "ignore", *launcher, "-m", "gapless", "check", "-q", "--no-loader"]
    child = subprocess.Popen(
        [*command, "-f", "json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        text=True,
    )
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(words)}: exit status {os.waitstatus_to_exitcode(status)}")
    report = next(line for line in lines if line.startswith('{"format":"gapless-report"'))
    return json.loads(report), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def cost_rows(rounds: int) -> list[list[object]]:
    rows: list[list[object]] = []
    for ranks in SIZES:
        for tensor in (1, 8):
            runs = [
                check("--world-size", str(ranks), SCRIPT, "--tensor-parallel", str(tensor))
                for _ in range(rounds)
            ]
            best_report, seconds, resident = min(runs, key=lambda run: run[1])
            sent = sum(collective["sent"] for collective in best_report["traffic"])
            name = f"{ranks // tensor} × {tensor}"
            rows.append([ranks, name, f"{seconds:.1f}", f"{resident:.0f}", size(sent)])
    return rows


def waits_by_line(session: Session) -> dict[tuple[Any, ...], int]:
    counts: dict[tuple[Any, ...], int] = {}
    for event in session.events:
        site = session.sites[event.site]
        key = site.line, site.operator, site.mechanism, event.tick
        counts[key] = counts.get(key, 0) + event.waits
    return counts


def memory_use(run: MemoryRun) -> tuple[int, int]:
    """Return the number of requests, and the most bytes in use at once."""
    used: dict[int, int] = {}
    most = requests = 0
    for action, ident, nbytes in zip(run.action, run.ident, run.size, strict=True):
        if action == ALLOC:
            used[ident] = nbytes
            requests += 1
            most = max(most, sum(used.values()))
        elif action == FREE:
            del used[ident]
    return requests, most


def beside_rows(folder: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    for name, words in BESIDE.items():
        both = []
        for kind, options, before in (("real", (), launcher), ("alone", ("--world-size", "2"), ())):
            path = str(folder / f"{kind}.gapless.json")
            report = check("--memory", "--steps", "4", "-o", path, *options, *words, launcher=before)[0]
            both.append((load(path), report["traffic"]))
        (real, theirs), (alone, mine) = both
        same = {
            "waits": waits_by_line(real) == waits_by_line(alone),
            "memory": [memory_use(memory_run) for memory_run in real.memory]
            == [memory_use(memory_run) for memory_run in alone.memory],
            "bytes": theirs == mine,
        }
        peak = memory_use(real.memory[0])[1]
        rows.append([name, size(peak), *("same" if is_same else "**differs**" for is_same in same.values())])
    return rows


PUBLISHED = {8: 82.4, 128: 67.0}
"""GiB that torchtitan's authors report as reserved on H100s with their model (`docs/performance.md` there:
Llama 3.1 8B, sequences of 8192, 2 per GPU, selective checkpointing)."""
SETTINGS = {"expandable": "expandable_segments:True", "default": ""}


def peak_rows() -> list[list[object]]:
    """Return rows of predicted peaks on an H200, which has room, in place of their 95 GiB H100s."""
    rows: list[list[object]] = []
    for ranks, published in PUBLISHED.items():
        for name, setting in SETTINGS.items():
            words = ("--world-size", str(ranks), "--dry", "--memory", "--no-prices", "--gpu", "H200")
            report, seconds, resident = check(*words, LLAMA, "--steps", "3", PYTORCH_CUDA_ALLOC_CONF=setting)
            (memory,) = report["memory"]
            peak = memory["baseline"]
            reserved, allocated = (peak[f"peak_{part}"] / 2**30 for part in ("reserved", "allocated"))
            off = f"{reserved / published - 1:+.1%}"
            sizes = f"{allocated:.1f}", f"{reserved:.1f}", published, off
            rows.append([ranks, name, *sizes, f"{seconds:.0f}", f"{resident:.0f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peaks", action="store_true", help="Llama 3 8B, too: some minutes more")
    options = parser.parse_args()
    text = _sheet.header(
        "One rank of many",
        "python benchmarks/world_size.py",
        "`gapless check --world-size N` of `_ranks.py` (a decoder of two layers, `fully_shard` and tensor "
        "parallelism, AdamW) in a process of its own, 6 steps: CPU time from start to end, importing torch "
        f"included, the best of {options.rounds}, and what was resident at most. Beside real ranks: rank 0 "
        "of two under torchrun, gloo carrying NCCL, and the same rank alone",
    )
    text += "## What ranks that are not there cost\n\n"
    columns = ["ranks", "sharded × tensor parallel", "CPU seconds", "resident, MB", "sent per step"]
    text += _sheet.table(columns, cost_rows(options.rounds))
    text += "\n## Rank 0 of two, alone and beside a real one\n\n"
    with tempfile.TemporaryDirectory() as folder:
        rows = beside_rows(Path(folder))
    columns = [
        "script",
        "peak in use",
        "waits by line and step",
        "requests and peak of memory",
        "bytes moved",
    ]
    text += _sheet.table(columns, rows)
    if options.peaks:
        text += "\n## Llama 3 8B without values (`_llama.py`), beside what was published of GPUs\n\n"
        columns = ["ranks", "allocator", "allocated, GiB", "reserved, GiB", "published", "off"]
        text += _sheet.table([*columns, "CPU seconds", "resident, MB"], peak_rows())
    print(_sheet.write("world_size", text).read_text())


if __name__ == "__main__":
    main()
