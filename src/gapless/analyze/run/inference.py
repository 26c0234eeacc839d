"""Runs that train nothing: what their iterations are called, and whether training may still begin."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from gapless.analyze.run.loop import Loop, ReadSource, training_loops
from gapless.analyze.run.steps import RunSteps, find_steps
from gapless.files.input import source_text
from gapless.model import Finding, Report, Session, StepMark, Table, Verdict
from gapless.model.estimate import Estimate
from gapless.model.source import Stack
from gapless.model.tally import UNTRAINED
from gapless.model.wording import rename_steps

TRAINING_STEP = "step"
ITERATION, BATCH, TOKEN, DENOISING, REQUEST = "iteration", "batch", "token", "denoising step", "request"

_TRAINS = re.compile(r"\bbackward\(|\boptim\b|[Oo]ptimizer|Trainer\(|\.fit\(|autograd\.grad")
"""Words in the source of a script that trains."""
_HAS_MODULES = re.compile(r"\bnn\.(?!functional\b)|\bModule\b|from_pretrained|pipeline\(|\bjit\.|hub\.load")
"""Words in the source of a script that calls modules."""
_BY_HEADER = (
    (DENOISING, re.compile(r"time_?steps?|denois|sigmas?\b|diffusion|num_inference_steps", re.IGNORECASE)),
    (TOKEN, re.compile(r"token|max_length|generat", re.IGNORECASE)),
    (REQUEST, re.compile(r"request", re.IGNORECASE)),
)
"""Words in a loop's first line that tell what its iterations are."""


def noun(steps: RunSteps, marks: Sequence[StepMark], loops: Sequence[Loop], read: ReadSource) -> str:
    """Return what an iteration of the run is called: ``step`` if something is trained."""
    if not steps.marks or steps.marks[0].kind not in UNTRAINED:
        return TRAINING_STEP
    frames = [frame for mark in steps.marks for frame in mark.stack]
    if any(frame.library == "transformers" and "generation" in frame.file for frame in frames):
        return TOKEN
    if any(frame.library == "diffusers" and "pipeline" in frame.file for frame in frames):
        return DENOISING
    header = _header(loops[0], read) if loops else ""
    by_header = next((name for name, words in _BY_HEADER if words.search(header)), "")
    batches = sum(mark.kind == "batch" for mark in marks)
    return by_header or (BATCH if 2 * batches >= steps.seen else ITERATION)


def noun_of(session: Session, read: ReadSource = source_text) -> str:
    """Return what an iteration of `session` is called."""
    steps = find_steps(session.marks, read)
    return noun(steps, session.marks, training_loops(steps.marks, session.marks, read), read)


def may_train(mark: StepMark, read: ReadSource = source_text) -> bool:
    """Whether the user's files that led to `mark` mention training, which then may still come."""
    return any(_TRAINS.search(text) for text in _sources(mark.stack, read))


def waits_end_iterations(stack: Stack, read: ReadSource = source_text) -> bool:
    """Whether the wait at `stack` may end an iteration.

    That is if the user's files that led there can be read and mention neither modules nor training, whose
    marks define iterations better.
    """
    texts = list(_sources(stack, read))
    return bool(texts) and not any(_TRAINS.search(text) or _HAS_MODULES.search(text) for text in texts)


def _sources(stack: Stack, read: ReadSource) -> Iterator[str]:
    """Yield the texts of the user's files in `stack` that can be read."""
    for file in dict.fromkeys(frame.file for frame in stack if frame.is_user):
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            yield read(file)


def _header(loop: Loop, read: ReadSource) -> str:
    """Return the first line of `loop`; "" if it cannot be read."""
    try:
        return read(loop.file).splitlines()[loop.first - 1]
    except (OSError, SyntaxError, ValueError, IndexError):
        return ""


def with_own_noun(report: Report) -> Report:
    """Return `report` of a run that trains nothing with its iterations called by their noun."""
    if report.steps.noun == TRAINING_STEP:
        return report
    words = partial(rename_steps, noun=report.steps.noun)
    return msgspec.structs.replace(
        report,
        verdict=_verdict(report.verdict, words),
        findings=_findings(report.findings, words),
        tables=tuple(_table(table, words) for table in report.tables),
        notes=tuple(map(words, report.notes)),
        memory=tuple(
            msgspec.structs.replace(
                memory,
                sentence=words(memory.sentence),
                advice=words(memory.advice),
                answer=_verdict(memory.answer, words),
                findings=_findings(memory.findings, words),
                notes=tuple(map(words, memory.notes)),
            )
            for memory in report.memory
        ),
    )


def _verdict(verdict: Verdict, words: Callable[[str], str]) -> Verdict:
    """Return `verdict` with `words` applied to its texts."""
    return msgspec.structs.replace(
        verdict,
        sentence=words(verdict.sentence),
        why=tuple(map(words, verdict.why)),
        facts=tuple(map(words, verdict.facts)),
        do_first=tuple(
            msgspec.structs.replace(change, what=words(change.what)) for change in verdict.do_first
        ),
        confidence=words(verdict.confidence),
        not_seen=tuple(map(words, verdict.not_seen)),
        per=words(verdict.per),
    )


def _findings(findings: Sequence[Finding], words: Callable[[str], str]) -> tuple[Finding, ...]:
    """Return `findings` with `words` applied to their texts."""
    return tuple(
        msgspec.structs.replace(
            finding,
            evidence=tuple(map(words, finding.evidence)),
            remedy=words(finding.remedy),
            change=words(finding.change),
        )
        for finding in findings
    )


def _table(table: Table, words: Callable[[str], str]) -> Table:
    """Return `table` with `words` applied to its texts."""
    return msgspec.structs.replace(
        table,
        title=words(table.title),
        columns=tuple(msgspec.structs.replace(column, name=words(column.name)) for column in table.columns),
        rows=tuple(
            msgspec.structs.replace(
                row, cells=tuple(words(cell) if isinstance(cell, str) else cell for cell in row.cells)
            )
            for row in table.rows
        ),
        notes=tuple(map(words, table.notes)),
    )


def with_tokens_only(estimate: Estimate | None, name: str) -> Estimate | None:
    """Return `estimate` of token generation: each model call makes one token per sample."""
    done = estimate.throughput if estimate is not None else None
    if estimate is None or done is None or name != TOKEN:
        return estimate
    throughput = msgspec.structs.replace(done, samples=None, tokens=done.samples)
    return msgspec.structs.replace(estimate, throughput=throughput)
