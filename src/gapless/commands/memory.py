"""``gapless memory``: replay the caching allocator, and try other settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from gapless.commands import _output
from gapless.errors import EXIT_FINDINGS, EXIT_OK, UnreadableInput, UsageError
from gapless.model.memory import CONTEXT, LargestBatch, MemoryReport, MemoryRun
from gapless.render import _memory

if TYPE_CHECKING:
    from gapless.memory.report import Wishes

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_PREFIXES = " kmgt"


@click.command("memory")
@click.option(
    "-f", "--format", "form", type=click.Choice(("json", "text")), default="text", show_default=True
)
@click.option(
    "--try",
    "tried",
    metavar="SETTINGS",
    multiple=True,
    help="And with these settings? As in PYTORCH_ALLOC_CONF; can be repeated.",
)
@click.option("--search", is_flag=True, help="Try all settings that make sense, and rank them.")
@click.option("--gpu", metavar="NAME", help="Does it fit this GPU? A10, H100, ...")
@click.option("--limit", metavar="SIZE", help="Does it fit into this much memory? 24GiB, 22GB.")
@click.option(
    "--larger-batch",
    "others",
    metavar="FILE",
    multiple=True,
    help="The same training with another batch size: what is the largest that fits? Can be repeated.",
)
@click.option("--device", metavar="N", type=click.IntRange(0), help="Of several devices this one.")
@click.option("--fresh", is_flag=True, help="Lay out anew what was in use when recording began.")
@click.option(
    "--export",
    "exported",
    metavar="FILE",
    help="Write the replay (under the first --try) as a snapshot for PyTorch's memory viewer.",
)
@click.option("-o", "--output", metavar="FILE", help="Save the run; `gapless memory FILE` replays it again.")
@click.option("-j", "--jobs", metavar="N", type=click.IntRange(1), help="Settings tried at once.")
@click.option("--all", "unfold", is_flag=True, help="Every row of every list.")
@click.option("--no-color", is_flag=True, help="Plain text; so does the variable NO_COLOR.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("snapshot", metavar="SNAPSHOT")
def command(
    snapshot: str,
    form: str,
    tried: tuple[str, ...],
    search: bool,
    gpu: str | None,
    limit: str | None,
    others: tuple[str, ...],
    device: int | None,
    fresh: bool,
    exported: str | None,
    output: str | None,
    jobs: int | None,
    unfold: bool,
    no_color: bool,
    quiet: bool,
) -> int:
    """Replay PyTorch's caching allocator on a recorded run: who holds the memory, what its settings cost.

    SNAPSHOT is what torch.cuda.memory._dump_snapshot() wrote after _record_memory_history(), a session that
    gapless check --memory saved, or a run that -o saved. Nothing in it is executed, and neither a GPU nor
    PyTorch is needed.

    \b
    Examples:
      gapless memory snapshot.pickle
      gapless memory --gpu A10 snapshot.pickle              does it fit?
      gapless memory --try expandable_segments:True snapshot.pickle
      gapless memory --search --limit 24GiB snapshot.pickle    the best settings
      gapless memory --export after.pickle --try max_split_size_mb:128 run.pickle

    Exit status: 0; 1 it does not fit (--gpu, --limit); 2 usage; 3 the snapshot could not be read.
    """
    from gapless.analyze.memory import findings
    from gapless.commands._many import cores
    from gapless.memory.report import Wishes, report

    run = _choose(read(snapshot), device)
    name, capacity, total = _room(gpu, limit)
    wishes = Wishes(
        capacity=capacity,
        total=total,
        gpu=name,
        tried=tried,
        search=search,
        begin="fresh" if fresh else "recorded",
        jobs=jobs or cores(),
    )
    with _progress(quiet) as progress:
        made = report(run, wishes, progress)
    made = msgspec.structs.replace(made, findings=findings(made))
    if others:
        made = msgspec.structs.replace(made, largest=_largest(run, others, device, wishes))
    if output:
        from gapless.model.memory import save

        save([run], output)
    if exported:
        from gapless.memory.export import export

        settings = tried[0] if tried else None
        export(run, exported, settings, capacity=capacity, total=total, begin=wishes.begin)
    _write(made, form, unfold, no_color)
    return EXIT_FINDINGS if made.baseline.shortage is not None and capacity >= 0 else EXIT_OK


def read(path: str) -> tuple[MemoryRun, ...]:
    """The runs in the file `path`: a snapshot, or what Gapless saved.

    Raises:
        UnreadableInput: it is neither.
    """
    from gapless.commands._saved import kind_of
    from gapless.memory.snapshot import read as read_snapshot
    from gapless.model.memory import load

    kind = kind_of(path)
    if kind == "memory":
        return load(path)
    if kind == "session":
        return _of_session(path)
    if kind == "trace" and not path.endswith((".pickle.gz", ".pkl.gz")):
        raise UnreadableInput(
            f"{path} is a profile: its [memory] events do not say how memory lay when it began, so that it "
            f"cannot be replayed; what they show of churn and growth is in gapless trace {path}"
        )
    if kind and kind != "trace":
        raise UnreadableInput(f"{path} is a saved {kind}, and holds no requests for memory")
    return read_snapshot(path)


def _largest(run: MemoryRun, others: tuple[str, ...], device: int | None, wishes: Wishes) -> LargestBatch:
    """The largest batch that fits, from this run and the `others`."""
    from gapless.memory.batch import largest_batch
    from gapless.memory.trials import Where

    if wishes.capacity < 0 and run.limit < 0:
        raise UsageError("what should the batch fit into? --gpu or --limit says it")
    runs = [run, *(_choose(read(path), device) for path in others)]
    return largest_batch(runs, Where(wishes.capacity, wishes.total, wishes.begin))


def _of_session(path: str) -> tuple[MemoryRun, ...]:
    """What `gapless check --memory` recorded."""
    from gapless.model.session import load

    session = load(path)
    if not session.memory:
        why = (
            "nothing was put on the device" if session.environment.unused else "it was saved without --memory"
        )
        raise UnreadableInput(f"{path} holds no requests for memory: {why}")
    return tuple(msgspec.structs.replace(run, path=path) for run in session.memory)


def _choose(runs: tuple[MemoryRun, ...], device: int | None) -> MemoryRun:
    """The run of `device`, or the busiest."""
    if not runs:
        raise UnreadableInput("the file holds no run: save it again")
    if device is None:
        return max(runs, key=lambda run: (len(run), sum(one.size for one in run.start), -run.device))
    for run in runs:
        if run.device == device:
            return run
    known = ", ".join(str(run.device) for run in runs)
    raise UsageError(f"nothing was recorded of device {device}: there is {known}")


def _room(gpu: str | None, limit: str | None) -> tuple[str, int, int]:
    """The device's name, what the process may reserve of it, and what it has; -1 where nothing is said."""
    name, capacity, total = "", -1, -1
    if gpu is not None:
        from gapless.emulate.gpus import find

        found = find(gpu)
        name, capacity, total = found.name, found.total_memory - CONTEXT, found.total_memory
    if limit is not None:
        capacity = parse_size(limit)
        total = max(total, capacity)
    return name, capacity, total


def parse_size(text: str) -> int:
    """Bytes: ``24GiB``, ``24G`` (the same), ``22.5GB`` (powers of 1000), ``1000000``.

    Raises:
        UsageError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size: write 24GiB, 22.5GB or a number of bytes")
    number, unit = float(found.group(1)), found.group(2).lower()
    decimal = len(unit) == 2 and unit.endswith("b")
    power = _PREFIXES.index(unit[0]) if unit not in ("", "b") else 0
    return int(number * (1000 if decimal else 1024) ** power)


def _write(made: MemoryReport, form: str, unfold: bool, no_color: bool) -> None:
    style = _output.style_for(sys.stdout, color=not no_color, unfold=unfold, folder=os.getcwd())
    text = _memory.as_json(made, style) if form == "json" else _memory.as_text(made, style)
    _output.write(sys.stdout, text)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar of the settings tried, on a terminal; it leaves nothing behind."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("gapless: {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("replaying", total=None)

        def told(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of, description=f"{of} settings tried")

        yield told
