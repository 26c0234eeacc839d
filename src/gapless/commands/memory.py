"""``gapless memory``: replay the caching allocator, and try other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from gapless.analyze import report as as_document
from gapless.analyze.memory_report import with_longest
from gapless.analyze.run.inference import with_own_noun
from gapless.analyze.verdicts.memory_verdict import too_long_batch
from gapless.commands import _output
from gapless.commands._bar import bar
from gapless.commands._memory_input import choose, parse_limits, parse_size, read, read_recorded
from gapless.errors import EXIT_FINDINGS, EXIT_OK, UsageError
from gapless.model import StepSummary
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import LargestBatch, MemoryReport

if TYPE_CHECKING:
    from gapless.memory.report import ReportOptions

__all__ = ["command", "parse_size", "read"]


@click.command("memory")
@_output.report_options
@click.option(
    "--try",
    "tried",
    metavar="SETTINGS",
    multiple=True,
    help="Also replay with these settings, written as in PYTORCH_ALLOC_CONF; can be repeated.",
)
@click.option("--search", is_flag=True, help="Try all sensible settings and rank them.")
@click.option("--gpu", metavar="NAME", help="Check whether it fits this GPU: A10, H100, ...")
@click.option("--limit", metavar="SIZE", help="Check whether it fits in this much memory: 24GiB, 22GB.")
@click.option(
    "--larger-batch",
    "recordings",
    metavar="FILE",
    multiple=True,
    help=(
        "A recording of the same training with another batch size, to find the largest that fits. Can be "
        "repeated."
    ),
)
@click.option(
    "--device", metavar="N", type=click.IntRange(0), help="Which device to analyze, if there are several."
)
@click.option(
    "--fresh", is_flag=True, help="Lay out again the memory that was already in use when recording began."
)
@_output.file_option(
    "--export",
    "exported",
    help="Write the replay (with the first --try) as a snapshot for PyTorch's memory viewer.",
)
@_output.file_option("-o", "--output", help="Save the run; `gapless memory FILE` replays it again.")
@click.option("-j", "--jobs", metavar="N", type=click.IntRange(1), help="Number of settings to try at once.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("snapshot", metavar="SNAPSHOT")
def command(
    snapshot: str,
    shown: _output.Shown,
    tried: tuple[str, ...],
    search: bool,
    gpu: str | None,
    limit: str | None,
    recordings: tuple[str, ...],
    device: int | None,
    fresh: bool,
    exported: str | None,
    output: str | None,
    jobs: int | None,
    quiet: bool,
) -> int:
    """Replay PyTorch's caching allocator on a recorded run: what holds the memory, what each setting does.

    SNAPSHOT is a file that torch.cuda.memory._dump_snapshot() wrote after _record_memory_history(), a session
    saved by gapless check --memory, a run saved with -o, or a profile with [memory] events (which contains
    less). Nothing in the file is executed, and neither a GPU nor PyTorch is needed.

    \b
    Examples:
      gapless memory snapshot.pickle
      gapless memory --gpu A10 snapshot.pickle              does it fit?
      gapless memory --try expandable_segments:True snapshot.pickle
      gapless memory --search --limit 24GiB snapshot.pickle    the best settings
      gapless memory -f html --search snapshot.pickle > memory.html    a page
      gapless memory --export after.pickle --try max_split_size_mb:128 run.pickle

    Exit status: 0; 1 it does not fit (--gpu, --limit); 2 usage error; 3 the snapshot could not be read.
    """
    shown.refuse_terminal(f"gapless memory -f html {snapshot}")
    options = _make_options(parse_limits(gpu, limit), tried, search, fresh, jobs)
    for written in (output, exported):
        _output.refuse_inputs(written, [snapshot, *recordings])
    held = read_recorded(snapshot)
    runs = held.runs
    run = choose(runs, device, options.where)
    result = _build_report(run, options, quiet, held.finished and options.capacity < 0)
    (result,) = with_longest([result], [run], held.loaders, options.where)
    if len(runs) > 1:
        from gapless.memory.devices import summarize_others as others_of

        result = msgspec.structs.replace(result, others=others_of(runs, run, options.where))
    if recordings:
        result = msgspec.structs.replace(
            result, largest=_find_largest_batch(run, recordings, device, options)
        )
    unsaved = _output.save_or_explain(partial(_write_files, run, result, options, output, exported))
    if shown.form == "html":
        result = _add_track(run, result, options)
    document = msgspec.structs.replace(as_document(result), steps=StepSummary(noun=held.noun))
    shown.write([with_own_noun(document)])
    short = result.lack is not None or too_long_batch([result]) is not None
    return unsaved or (EXIT_FINDINGS if short and options.capacity >= 0 else EXIT_OK)


def _make_options(
    room: tuple[str, int, int], tried: tuple[str, ...], search: bool, fresh: bool, jobs: int | None
) -> ReportOptions:
    from gapless.commands._saved import read_user_source
    from gapless.cores import usable_cores
    from gapless.memory.report import ReportOptions

    name, capacity, total = room
    return ReportOptions(
        capacity=capacity,
        total=total,
        gpu=name,
        tried=tried,
        search=search,
        begin="fresh" if fresh else "recorded",
        jobs=jobs or usable_cores(),
        source=read_user_source,
    )


def _build_report(run: MemoryRun, options: ReportOptions, quiet: bool, finished: bool) -> MemoryReport:
    """Build the report with the findings of the rules; `finished` says that the program ended by itself."""
    from gapless.analyze.memory_report import findings, with_handler
    from gapless.memory.report import report

    with _progress(quiet) as progress:
        result = msgspec.structs.replace(report(run, options, progress), finished=finished)
    result = with_handler(result, run)
    return msgspec.structs.replace(result, findings=findings(result))


def _add_track(run: MemoryRun, report: MemoryReport, options: ReportOptions) -> MemoryReport:
    """Return the report with the timeline that an HTML page draws."""
    from gapless.memory.tracking import build_track

    return msgspec.structs.replace(report, track=build_track(run, report, options.where))


def _write_files(
    run: MemoryRun, report: MemoryReport, options: ReportOptions, output: str | None, exported: str | None
) -> None:
    """Write the files of --output and --export."""
    if exported and not report.replayed:
        raise UsageError(f"--export writes a replay, but {run.path} does not contain enough for one")
    if output:
        from gapless.model.memory import save

        save([run], output)
    if exported:
        from gapless.memory.export import export

        settings = options.tried[0] if options.tried else None
        more = {"capacity": options.capacity, "total": options.total, "begin": options.begin}
        export(run, exported, settings, **more)


def _find_largest_batch(
    run: MemoryRun, recordings: tuple[str, ...], device: int | None, options: ReportOptions
) -> LargestBatch:
    """Estimate the largest batch that fits, from this run and `recordings` with other batch sizes."""
    from gapless.memory.batch import largest_batch

    if options.capacity < 0 and run.limit < 0:
        raise UsageError("what must the batch fit in? Use --gpu or --limit")
    runs = [run, *(choose(read(path), device, options.where) for path in recordings)]
    return largest_batch(runs, options.where)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of the settings tried on a terminal, and yield how to update it."""
    with bar("replaying", quiet=quiet) as update_bar:
        yield lambda done, of: update_bar(done, of, f"{of} settings tried")
