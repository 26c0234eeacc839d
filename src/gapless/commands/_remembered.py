"""What a session recorded of the GPU's memory, in its report."""

from __future__ import annotations

import msgspec

from gapless.model import Report, Session


def with_memory(found: Report, session: Session, form: str) -> Report:
    """`found` with what replaying the allocator says, where memory was recorded; drawn for the format
    ``html``."""
    if not session.memory:
        return found
    from gapless.analyze.memory import findings
    from gapless.memory.report import report as replay
    from gapless.memory.tracking import track

    made = [replay(run) for run in session.memory]
    told = [f"memory, device {one.device}: {one.sentence[0].lower()}{one.sentence[1:]}" for one in made]
    if form == "html":
        pairs = zip(session.memory, made, strict=True)
        made = [msgspec.structs.replace(one, track=track(run, one)) for run, one in pairs]
    return msgspec.structs.replace(
        found,
        memory=tuple(made),
        findings=(*found.findings, *(one for memory in made for one in findings(memory))),
        notes=(*found.notes, *told, *dict.fromkeys(note for run in session.memory for note in run.notes)),
    )
