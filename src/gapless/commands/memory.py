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
from gapless.commands._options import takes
from gapless.errors import EXIT_FINDINGS, EXIT_OK, UsageError
from gapless.model import StepSummary
from gapless.model.memory import MemoryRun
from gapless.model.memory_report import LargestBatch, MemoryReport

if TYPE_CHECKING:
    from gapless.memory.report import ReportOptions

__all__ = ["command", "parse_size", "read"]


class MemoryOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    shown: _output.Shown = _output.Shown()
    tried: tuple[str, ...] = ()
    search: bool = False
    gpu: str | None = None
    limit: str | None = None
    recordings: tuple[str, ...] = ()
    device: int | None = None
    fresh: bool = False
    exported: str | None = None
    output: str | None = None
    jobs: int | None = None
    quiet: bool = False


@takes(MemoryOptions())
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
def command(snapshot: str, options: MemoryOptions) -> int:
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
    options.shown.refuse_terminal(f"gapless memory -f html {snapshot}")
    replay = _replay_options(options)
    for written in (options.output, options.exported):
        _output.refuse_inputs(written, [snapshot, *options.recordings])
    held = read_recorded(snapshot)
    runs = held.runs
    run = choose(runs, options.device, replay.where)
    result = _build_report(run, replay, options.quiet, held.finished and replay.capacity < 0)
    (result,) = with_longest([result], [run], held.loaders, replay.where)
    if len(runs) > 1:
        from gapless.memory.devices import summarize_others as others_of

        result = msgspec.structs.replace(result, others=others_of(runs, run, replay.where))
    if options.recordings:
        largest = _find_largest_batch(run, options.recordings, options.device, replay)
        result = msgspec.structs.replace(result, largest=largest)
    unsaved = _output.save_or_explain(
        partial(_write_files, run, result, replay, options.output, options.exported)
    )
    if options.shown.form == "html":
        result = _add_track(run, result, replay)
    document = msgspec.structs.replace(as_document(result), steps=StepSummary(noun=held.noun))
    options.shown.write([with_own_noun(document)])
    short = result.lack is not None or too_long_batch([result]) is not None
    return unsaved or (EXIT_FINDINGS if short and replay.capacity >= 0 else EXIT_OK)


def _replay_options(options: MemoryOptions) -> ReportOptions:
    """Return the conditions of the replay."""
    from gapless.commands._user_source import read_user_source
    from gapless.cores import usable_cores
    from gapless.memory.report import ReportOptions

    name, capacity, total = parse_limits(options.gpu, options.limit)
    return ReportOptions(
        capacity=capacity,
        total=total,
        gpu=name,
        tried=options.tried,
        search=options.search,
        begin="fresh" if options.fresh else "recorded",
        jobs=options.jobs or usable_cores(),
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
