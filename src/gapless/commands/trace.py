"""``gapless trace``: explain saved profiles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Literal

import click
import msgspec

from gapless.analyze import report
from gapless.commands import _gate, _output
from gapless.commands._diagnosed import add_diagnosis, load_any_diagnosis
from gapless.commands._evidence import write_evidence
from gapless.commands._options import takes
from gapless.commands._reading import read_profiles
from gapless.commands._user_source import read_user_source
from gapless.errors import EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, UnreadableInput, UsageError
from gapless.model import Profile, Report
from gapless.render import Style, _perfetto

TIMELINE_BOXES = ((8, 16_000), (64, 4_000))
"""(traces, boxes): up to so many traces, each timeline on a page is thinned to so many boxes; beyond that
none is drawn. It keeps a page to a few megabytes.
"""
MAX_PRICED_TRACES = 8
"""With more traces none is replayed for prices: replaying takes longer than reading."""


MAX_SKIPPED_NAMED = 12
"""Skipped files that are named; of more only the number is given."""


class TraceOptions(msgspec.Struct, frozen=True):
    """The command's options."""

    shown: _output.Shown = _output.Shown()
    quiet: bool = False
    output: str | None = None
    jobs: int | None = None
    where: Literal["processes", "ray"] = "processes"
    fail_on: tuple[str, ...] = ()
    max_idle: float | None = None
    without: tuple[str, ...] = ()
    what_if: tuple[str, ...] = ()
    prices: bool = True
    perfetto: str | None = None
    loader: str | None = None
    evidence: bool = False
    with_shapes: bool = False


@takes(TraceOptions())
@click.command("trace")
@_output.report_options
@_output.file_option(
    "-o",
    "--output",
    help="Save the results (with -f html also the timeline); `gapless show FILE` shows the report again.",
)
@click.option(
    "-j",
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="Number of traces to read at once (default: one per core).",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(("processes", "ray")),
    show_default=True,
    help="Where to read many traces: on this machine, or on a Ray cluster.",
)
@_gate.fail_on
@click.option(
    "--max-idle",
    metavar="PERCENT",
    type=click.FloatRange(0, 100),
    help="Exit with 1 if the GPU idles for more than this share of the steps.",
)
@click.option(
    "--without",
    metavar="WHAT",
    multiple=True,
    help=(
        "How long would it take without these syncs? A rule (GAP112), a line (model.py:42), a file or a "
        "library."
    ),
)
@click.option(
    "--what-if",
    metavar="WHAT",
    multiple=True,
    help=(
        "How long would it take with pinned copies (pinned), every batch on time (input), one launch per "
        "step (graphs), or one kernel twice as fast (half:KERNEL)?"
    ),
)
@click.option("--prices/--no-prices", help="Replay the trace to price each sync; --no-prices is faster.")
@_output.file_option(
    "--perfetto",
    help=(
        "Write the trace again with the findings as extra tracks next to its events (FILE.json or .json.gz)."
    ),
)
@click.option(
    "--loader",
    metavar="FILE",
    help=(
        "Explain input stalls with a measurement: a file from gapless loader -o, or a session of gapless "
        "check."
    ),
)
@click.option(
    "--evidence",
    is_flag=True,
    help=(
        "Print how often each operator was called and how often it waited, to contribute to the table of "
        "syncs."
    ),
)
@click.option(
    "--with-shapes", is_flag=True, help="With --evidence: include all sizes and numbers as recorded."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@click.argument("traces", metavar="TRACE...", nargs=-1)
def command(traces: tuple[str, ...], options: TraceOptions) -> int:
    """Explain PyTorch profiler traces: why the GPU idled, and which line caused it.

    TRACE is a file (plain or compressed), a folder, a pattern, a URL (s3://..., with fsspec) or - (standard
    input). Ranks of the same run are recognized and explained together, and so are the two passes in a folder
    written by `gapless profile`. Run it in the script's folder to see the exact lines of code. It needs
    neither a GPU nor PyTorch.

    \b
    Examples:
      gapless trace trace.json.gz
      gapless trace -f html trace.json.gz > report.html    a page with a timeline
      gapless trace --all ./log/                    all ranks, with kernels
      gapless trace -f json trace.json.gz | jq .findings[0]
      gapless trace --without GAP112 --without model.py:42 trace.json.gz
      gapless trace --what-if pinned --what-if input trace.json.gz
      gapless trace --loader loader.json trace.json.gz  which num_workers to use
      gapless trace --max-idle 20 trace.json.gz     a CI gate
      gapless trace --perfetto seen.json.gz trace.json.gz  for ui.perfetto.dev
      gapless trace --evidence -o waits.tsv ./log/  what waited, without sizes

    Exit status: 0 within the limits; 1 over a limit; 2 usage error; 3 a trace could not be read, or is too
    incomplete to check against a limit.
    """
    if not traces:
        raise UsageError("no trace given. Example: gapless trace trace.json.gz")
    if options.evidence:
        return write_evidence(traces, options.with_shapes, options.output)
    if options.with_shapes:
        raise UsageError("--with-shapes needs --evidence")
    options.shown.refuse_terminal(f"gapless trace -f html {traces[0]}")
    return trace(traces, options)


def trace(traces: Sequence[str], options: TraceOptions) -> int:
    """Read, report and save; return the exit status."""
    from gapless.analyze.profile.profile_report import report_runs as of_runs

    measured = load_any_diagnosis(options.loader) if options.loader else None
    profiles, failures, notes = _profiles(traces, options)
    for failure in failures:
        _output.say(str(failure))
    if not profiles:
        return UnreadableInput.exit_code
    status: int = UnreadableInput.exit_code if failures else EXIT_OK
    if options.perfetto:
        marked = report(profiles, read=read_user_source)
        status = _output.save_or_explain(partial(_write_perfetto, marked, options.perfetto)) or status
        if options.shown.form != "html":  # nothing else draws them
            profiles = [msgspec.structs.replace(profile, lanes=None) for profile in profiles]
    if options.output:
        from gapless.model.profile import save

        status = _output.save_or_explain(partial(save, profiles, options.output)) or status
    reports = of_runs(profiles, notes, read_user_source)
    if measured is not None:
        reports = add_diagnosis(reports, measured)
    options.shown.write(reports)
    if options.fail_on or options.max_idle is not None:
        for reason in _gate.describe_incomplete(profiles):
            _output.say(reason)
            status = EXIT_UNREADABLE
    for document in reports:
        for reason in exceeded_limits(document, options):
            _output.say(reason)
            status = status or EXIT_FINDINGS
    return status


def _profiles(
    traces: Sequence[str], options: TraceOptions
) -> tuple[list[Profile], list[UnreadableInput], list[str]]:
    """Return the readable profiles, the errors of the other files, and notes on files left out."""
    from gapless.commands._passes import join_passes, profile_of_pair
    from gapless.trace.find import find_traces

    skipped: list[str] = []
    named = find_traces(traces, skipped)
    _output.refuse_inputs(options.output, named)
    paths, pairs, ranks = join_passes(named)
    more = f" and {len(skipped) - MAX_SKIPPED_NAMED:,} more" if len(skipped) > MAX_SKIPPED_NAMED else ""
    notes = [f"not traces, skipped: {', '.join(skipped[:MAX_SKIPPED_NAMED])}{more}"] if skipped else []
    questions = (*options.without, *(f"@{question}" for question in options.what_if))
    if questions and len(paths) > 1:
        raise UsageError(f"--without and --what-if work on one trace; {len(paths)} were given")
    if options.perfetto and len(paths) > 1:
        raise UsageError(f"--perfetto writes one trace; {len(paths)} were given")
    read_pair = partial(
        profile_of_pair,
        pairs,
        ranks,
        priced=options.prices and len(paths) <= MAX_PRICED_TRACES,
        requested=questions,
        max_boxes=_timeline_boxes(options, len(paths)),
    )
    profiles, failures = read_profiles(
        paths, read_pair, quiet=options.quiet, jobs=options.jobs, where=options.where
    )
    return profiles, failures, notes


def _timeline_boxes(options: TraceOptions, traces: int) -> int:
    """Return how many boxes each trace's timeline is thinned to; 0 if nothing is drawn."""
    if options.shown.form == "html":
        return next((boxes for most, boxes in TIMELINE_BOXES if traces <= most), 0)
    return _perfetto.MAX_BOXES if options.perfetto else 0


def _write_perfetto(report: Report, target: str) -> None:
    """Write the trace of `report` again, with the findings as extra tracks."""
    from gapless.trace.splice import splice

    path = report.profile.path if report.profile else ""
    style = Style(folder=os.getcwd())
    splice(path, target, lambda base: _perfetto.events(report, style, base))


def exceeded_limits(report: Report, options: TraceOptions) -> list[str]:
    """Return a line for each limit that the report exceeds."""
    profile = report.profile
    if profile is not None and not profile.coverage.complete:
        return []
    reasons = _gate.find_exceeded_limits(report, None, options.fail_on)
    if options.max_idle is not None and profile is not None and profile.steps.total:
        idle = 100 * profile.idle / profile.steps.total
        if idle > options.max_idle:
            reasons.append(
                f"the GPU idles for {idle:.1f} % of the steps, over the limit of {options.max_idle:g} "
                "(--max-idle)"
            )
    return reasons
