"""What a page says of a run's memory: who holds the peak, what other settings would do."""

from __future__ import annotations

from typing import Any

from gapless.model.memory import MemoryReport, Moment, Outcome, Owner
from gapless.model.wording import binary_size, count, duration, percent
from gapless.render import _memory_words as words
from gapless.render.html import _track
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources

_OWNERS = 20
_ROWS = 40
_STEPS = 200


def picture(made: MemoryReport, name: str, clean: Clean, sources: Sources, several: bool) -> dict[str, Any]:
    """All that is shown of one device's memory; `name` is the section's."""
    track = made.track
    drawn = _track.others(made, track) if track is not None else []
    return {
        "id": name,
        "title": f"Memory of device {made.device}" if several else "Memory",
        "tiles": _tiles(made),
        "fits": _fits(made),
        "data": _track.data(made, track, name, clean) if track is not None else None,
        "finest": track.finest if track is not None else 1,
        "thinned": track is not None and len(track.windows) > 1,
        "peak": _peak(made, clean, sources),
        "rows": _rows(made, clean),
        "trials": _trials(made, drawn),
        "remedies": _remedies(made),
        "base": {"name": made.settings or "as the run has them", **_numbers(made.baseline, made.baseline)},
        "growth": _growth(made, clean),
        "steps": _steps(made),
    }


def facts(made: MemoryReport, clean: Clean) -> list[str]:
    """What was replayed, a few words each."""
    return [clean.path(part) for part in words.what(made, clean.path).split(" · ")]


def advice(made: MemoryReport) -> dict[str, str] | None:
    """What to change, and the settings to write."""
    told, settings = words.advice(made)
    return {"told": told, "settings": settings} if told else None


def _tiles(made: MemoryReport) -> list[tuple[str, str, str]]:
    base, height = made.baseline, made.height
    found = [("allocated at most", binary_size(base.peak_allocated), words.when(made.peak, made))]
    spare = percent(height.free / height.reserved) if height.reserved else ""
    found.append(
        ("reserved at most", binary_size(base.peak_reserved), f"{spare} of it idle then" if spare else "")
    )
    if base.calls:
        price = f"about {duration(base.price)}"
        share = f", {percent(base.price / made.span)} of the run" if made.span > 0 else ""
        found.append(("calls to the driver", f"{base.calls:,}", price + share))
    if base.retries or base.failures:
        found.append(("found the GPU full", f"{base.retries + base.failures:,}", "requests"))
    if made.limit >= 0:
        left = made.limit - base.peak_reserved
        found.append(
            (
                "this process may have",
                binary_size(made.limit),
                f"{binary_size(left)} left" if left > 0 else "",
            )
        )
    return found


def _fits(made: MemoryReport) -> list[tuple[str, str]]:
    """Whether it fits, and what was missing where it does not: a tone and a sentence."""
    base, found = made.baseline, []
    where = made.gpu or (binary_size(made.limit) if made.limit >= 0 else "")
    if made.lack is not None:
        found += [("bad", f"{made.sentence}."), ("", words.why(made))]
    elif made.at_least:
        found.append(("", f"{made.sentence}."))
    elif made.limit >= 0:
        left = max(made.limit - base.peak_reserved, 0)
        tone = "good" if not (base.retries or base.failures) else ""
        also = f", but {count(base.retries, 'request')} found it full first" if base.retries else ""
        spare = f": {binary_size(left)} of {binary_size(made.limit)} are never reserved" if left else ""
        found.append((tone, f"It fits into {where}{also}{spare}."))
    if made.largest is not None:
        told = words.largest(made.largest)
        found.append(("", f"Batch: {told}."))
    return found


def _peak(made: MemoryReport, clean: Clean, sources: Sources) -> dict[str, Any] | None:
    """Who holds the memory when most is allocated: by kind, and by line."""
    peak = made.failing or made.peak
    if not peak.owners:
        return None
    total = sum(peak.kinds.values()) or 1
    shown = peak.owners[:_OWNERS]
    rest = total - sum(one.bytes for one in shown)
    most = max(one.bytes for one in shown)
    return {
        "of": "the peak" if made.failing is None else "the memory when the request failed",
        "when": words.when(peak, made),
        "allocated": binary_size(peak.allocated),
        "kinds": [] if set(peak.kinds) == {"unknown"} else _kinds(peak, total),
        "owners": [_owner(one, total, most, clean, sources) for one in shown],
        "rest": {"bytes": binary_size(rest), "share": words.share(rest / total)} if rest > 0 else None,
    }


def _kinds(peak: Moment, total: int) -> list[dict[str, Any]]:
    """Bytes by kind, those from before the recording for themselves."""
    early = sum(one.bytes for one in peak.owners if one.before)
    parts = [
        (_track.kind_color(kind), words.KINDS.get(kind, kind), held - (early if kind == "unknown" else 0))
        for kind, held in peak.kinds.items()
    ]
    parts.append(("c-profiler", "from before the recording", early))
    return [
        {
            "key": key,
            "label": label,
            "share": f"{100 * held / total:.1f}",
            "width": f"{100 * held / total:.3f}",
            "time": binary_size(held),
        }
        for key, label, held in sorted(parts, key=lambda part: -part[2])
        if held > 0
    ]


def _owner(one: Owner, total: int, most: int, clean: Clean, sources: Sources) -> dict[str, Any]:
    lines = sources.around(one.line) if one.line is not None and one.line.is_user else []
    return {
        "bytes": binary_size(one.bytes),
        "share": words.share(one.bytes / total),
        "width": f"{100 * one.bytes / most:.2f}",
        "tensors": count(one.tensors, "tensor"),
        "kind": words.KINDS[one.kind] if one.kind != "unknown" else "",
        "where": words.place(one, clean.path),
        "code": [{"n": n, "text": text, "hit": n == one.line.line} for n, text in lines] if one.line else [],
    }


def _rows(made: MemoryReport, clean: Clean) -> list[tuple[str, str]]:
    """Labels and sentences: what lies idle, what was asked of the driver, how exact the replay is."""
    parts = words.parts(made.peak)
    found = [("by module", ", ".join(parts))] if parts else []
    found += [("kept", words.kept(one, clean.path)) for one in made.kept]
    found += [("idle", words.idle(made.height))] if made.height.reserved else []
    found.append(("calls", words.calls(made)))
    told = words.fidelity(made)
    return [*found, ("replay", told)] if told else found


def _steps(made: MemoryReport) -> dict[str, Any] | None:
    """The steps' ends as a table: what the picture shows, for those who read."""
    if not made.ends:
        return None
    rows, taken, given, retries = [], 0, 0, 0
    for number, end in enumerate(made.ends[:_STEPS], 1):
        calls = (end.taken - taken, end.given - given, end.retries - retries)
        taken, given, retries = end.taken, end.given, end.retries
        rows.append(
            [
                f"step {number}",
                binary_size(end.allocated),
                binary_size(end.reserved),
                *(f"{one:,}" for one in calls),
            ]
        )
    head = ["at the end of", "allocated", "reserved", "taken from the driver", "given back", "retries"]
    more = "" if len(made.ends) <= _STEPS else f", the first {_STEPS}"
    return {
        "id": "steps",
        "title": f"The steps as a table{more}",
        "head": head,
        "rows": rows,
        "words": 1,
        "titles": [],
    }


def _growth(made: MemoryReport, clean: Clean) -> list[dict[str, str]]:
    return [
        {
            "where": words.place(Owner(line=one.line, operator=one.operator, kind=one.kind), clean.path),
            "kind": words.KINDS.get(one.kind, one.kind) if one.kind != "unknown" else "",
            "bytes": binary_size(one.bytes),
            "tensors": f"{one.tensors:.3g}",
            "steps": str(one.steps),
        }
        for one in made.growth[:_OWNERS]
    ]


def _numbers(outcome: Outcome, base: Outcome) -> dict[str, Any]:
    failed = words.failed(outcome)
    if failed:
        return {"short": failed}
    return {
        "short": "",
        "reserved": binary_size(outcome.peak_reserved),
        "change": words.change(outcome, base),
        "tone": "less" if outcome.peak_reserved < 0.9995 * base.peak_reserved else "",
        "retries": f"{outcome.retries:,}",
        "calls": f"{outcome.calls:,}",
        "price": duration(outcome.price) if outcome.price else "–",
    }


def _trials(made: MemoryReport, drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The settings that were tried; `course` is the line that is drawn of them, -1 for none."""
    lines = {one["name"]: number for number, one in enumerate(drawn)}
    found = []
    for at, one in enumerate(made.trials[:_ROWS]):
        course = lines.get(one.settings, -1)
        found.append(
            {
                "name": one.settings,
                "note": one.note,
                "best": at == made.best,
                "course": course,
                "color": drawn[course]["color"] if course >= 0 else "",
                "shown": course >= 0 and drawn[course]["shown"],
                "told": one.outcome is not None,
                **(_numbers(one.outcome, made.baseline) if one.outcome is not None else {"short": ""}),
            }
        )
    return found


def _remedies(made: MemoryReport) -> list[dict[str, Any]]:
    return [
        {
            "name": one.title,
            "best": at == made.remedy,
            "elements": words.elements(one.tokens),
            **_numbers(one.outcome, made.baseline),
        }
        for at, one in enumerate(made.remedies[:_ROWS])
        if one.outcome is not None
    ]
