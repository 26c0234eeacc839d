"""A diagnosis of a loader as a page shows it: what a batch costs, what each setting would give."""

from __future__ import annotations

from typing import Any

from gapless.model.loading import Diagnosis, Prediction, Seen
from gapless.model.wording import count, duration, percent, size
from gapless.render import _loader as told
from gapless.render._mistakes import looked
from gapless.render.html._clean import Clean
from gapless.render.html._source import Sources
from gapless.rules._of_loader import findings

_LABELS = 12
"""Of more columns not every one has its number above it."""
_HEIGHT = 210
"""Pixels of the chart, as in the style."""
Part = tuple[str, str, float]


def shown(made: Diagnosis, clean: Clean, sources: Sources) -> dict[str, Any]:
    """All that the page shows of `made`."""
    sentence = made.sentence[:1].upper() + made.sentence[1:]
    making, taking = _making(made), _taking(made)
    chart = _chart(made)
    runs = _runs(made)
    found = [
        {"code": rule.code, "name": rule.name, "evidence": hit.evidence, "remedy": hit.remedy}
        for rule, hit in findings(made)
    ]
    parts = [
        ("batch", "A batch", True),
        ("settings", "Settings", made.predictions),
        ("runs", "Measured", runs),
        ("found", "Findings", found),
        ("mistakes", "Mistakes", made.correctness),
        ("notes", "Notes", (*told.why(made), *made.notes)),
    ]
    return {
        "title": sentence,
        "nav": [(name, title) for name, title, there in parts if there],
        "facts": told.what(made).split(" · "),
        "advice": told.arguments(made) if made.recommended else "",
        "tiles": _tiles(made),
        "making": _breakdown(making),
        "taking": _breakdown(taking),
        "making_in": duration(sum(time for _, _, time in making)),
        "taking_in": duration(sum(time for _, _, time in taking)),
        "hot": _hot(made, clean, sources),
        "chart": chart,
        "rows": [_row(one, made) for one in made.predictions],
        "bounds": told.bounds(made),
        "runs": runs,
        "found": found,
        "correctness": _correctness(made, clean, sources) if made.correctness is not None else None,
        "notes": (*told.why(made), *made.notes),
    }


def _tiles(made: Diagnosis) -> list[tuple[str, str, str]]:
    fetch, transfer = made.fetch, made.transfer
    items = f"{fetch.batch_size:.4g} items, {duration(fetch.item)} each" if fetch.item else ""
    found = [("a batch takes", duration(fetch.cpu + fetch.wait), items)]
    if made.demand.step:
        found.append(("your step takes", duration(made.demand.step), made.demand.source))
    if made.advised is not None and made.now is not None and made.doubt is None:
        now = duration(made.now.step)
        found.append(("a step with this loader", now, f"{percent(told.part(made.now))} of it waiting"))
        best = duration(made.advised.step)
        found.append(("as advised", best, f"{percent(told.part(made.advised))} of it waiting"))
    found.append(("a batch is", size(fetch.batch_bytes), f"in {count(fetch.tensors, 'tensor')}"))
    if transfer.batches:
        private = f", {size(transfer.private)} of its own" if transfer.private >= 0 else ""
        first = duration(transfer.first)
        found.append(("a worker begins after", first, f"{made.machine.start}{private}"))
    return found


def _making(made: Diagnosis) -> list[Part]:
    """What making a batch takes, in a worker or in the loop: colour, name, nanoseconds."""
    fetch, items, around = made.fetch, max(made.fetch.batch_size, 1), made.around
    if around is not None and around.foreign:
        waiting = around.wall - around.cpu
        return [("c-host", "the next batch, computing", around.cpu), ("c-input", "waiting for it", waiting)]
    found = [
        ("c-host", "items, computing", fetch.item_cpu * items),
        ("c-input", f"items, {fetch.waiting}", fetch.item_wait * items),
        ("c-launch", "collating", fetch.collate_cpu),
    ]
    if made.transfer.batches:
        found.append(("c-communication", "sending, in a worker", made.transfer.send))
    return found


def _taking(made: Diagnosis) -> list[Part]:
    """What taking it over takes of the training process."""
    transfer = made.transfer
    found: list[Part] = []
    if transfer.batches:
        found.append(("c-communication", "receiving", transfer.receive))
        found.append(("c-unknown", "waiting for a worker that is busy", transfer.latency))
    if made.around is not None and not made.around.foreign:
        found.append(("c-host", f"{made.around.name}, around it", made.around.wall))
    if transfer.pin >= 0:
        found.append(("c-allocator", "pinning", transfer.pin))
    if transfer.copy >= 0:
        found.append(("b-copy", "copying to the GPU", transfer.copy))
    return found


def _breakdown(parts: list[Part]) -> list[dict[str, Any]]:
    total = sum(time for _, _, time in parts)
    return [
        {
            "key": key,
            "label": label,
            "share": f"{100 * time / total:.1f}",
            "width": f"{100 * time / total:.3f}",
            "time": duration(time),
        }
        for key, label, time in parts
        if total and time >= 500
    ]


def _hot(made: Diagnosis, clean: Clean, sources: Sources) -> list[dict[str, Any]]:
    """The lines that making batches takes its time in."""
    most = max((one.share for one in made.hot), default=0.0) or 1.0
    return [
        {
            "share": percent(one.share),
            "width": f"{100 * one.share / most:.2f}",
            "where": f"{clean.path(one.line.file)}:{one.line.line}",
            "function": one.line.function,
            "code": [
                {"n": n, "text": text, "hit": n == one.line.line} for n, text in sources.around(one.line)
            ],
        }
        for one in made.hot
    ]


def _chart(made: Diagnosis) -> dict[str, Any] | None:
    """One column for each number of workers: the step, how much of it waits, and what was measured."""
    columns = _columns(made)
    if not columns:
        return None
    seen = [one for one in (made.seen, made.verified) if one is not None]
    top = 1.12 * max([one.step for one in columns] + [one.step for one in seen]) or 1.0
    every = -(-len(columns) // _LABELS)
    return {
        "columns": [
            {
                "workers": one.setting.workers,
                "own": f"{100 * (one.step - one.wait) / top:.2f}",
                "wait": f"{100 * one.wait / top:.2f}",
                "lift": _lift(one, seen, top),
                "told": duration(one.step) if at % every == 0 or one in (made.now, made.advised) else "",
                "title": f"{one.setting.workers} workers: {duration(one.step)} a step, "
                f"{percent(told.part(one))} of it waiting",
                "advised": made.advised is not None and told.alike(one, made.advised),
                "now": made.now is not None and told.alike(one, made.now),
                "seen": [
                    {
                        "at": f"{100 * run.step / top:.2f}",
                        "title": f"measured: {duration(run.step)} a step, {percent(run.share)} of it waiting",
                    }
                    for run in seen
                    if run.setting.workers == one.setting.workers
                ],
            }
            for at, one in enumerate(columns)
        ],
        "demand": {"at": f"{100 * made.demand.step / top:.2f}", "told": duration(made.demand.step)}
        if 0 < made.demand.step < top
        else None,
        "measured": bool(seen),
        "told": "; ".join(
            f"{one.setting.workers} workers {duration(one.step)}, waiting {duration(one.wait)}"
            for one in columns
        ),
    }


def _lift(one: Prediction, seen: list[Seen], top: float) -> int:
    """Pixels by which the number above a column makes room for the mark of what was measured."""
    above = [run.step for run in seen if run.setting.workers == one.setting.workers and run.step >= one.step]
    higher = _HEIGHT * (max(above, default=0.0) - one.step) / top
    return round(higher) + 3 if above and higher < 20 else 0


def _columns(made: Diagnosis) -> list[Prediction]:
    """For each number of workers the setting in use or advised, or else the shortest step."""
    special = [one for one in (made.advised, made.now) if one is not None]
    best: dict[int, Prediction] = {}
    for one in made.predictions:
        if one.excluded:
            continue
        other = best.get(one.setting.workers)
        named = any(told.alike(one, each) for each in special)
        kept = other is not None and any(told.alike(other, each) for each in special)
        if other is None or (named and not kept) or (not kept and one.step < other.step):
            best[one.setting.workers] = one
    return [best[workers] for workers in sorted(best)]


def _row(one: Prediction, made: Diagnosis) -> dict[str, Any]:
    return {
        "workers": one.setting.workers,
        "prefetch": str(one.setting.prefetch) if one.setting.workers else "–",
        "step": duration(one.step),
        "waiting": percent(told.part(one)),
        "ready": f"{one.ready:.1f}",
        "first": duration(one.first),
        "memory": size(one.memory),
        "excluded": one.excluded,
        "advised": made.advised is not None and told.alike(one, made.advised),
        "now": made.now is not None and told.alike(one, made.now),
        "folded": any(one is other for other in told.folded(made)),
    }


def _correctness(made: Diagnosis, clean: Clean, sources: Sources) -> dict[str, Any]:
    """Whether it yields what it should."""
    of = made.correctness
    assert of is not None
    return {
        "looked": looked(of),
        "notes": of.notes,
        "mistakes": [
            {
                "code": one.code,
                "name": one.name,
                "seen": one.seen,
                "remedy": one.remedy,
                "where": f"{clean.path(one.line.file)}:{one.line.line}" if one.line is not None else "",
                "lines": [
                    {"n": n, "text": text, "hit": n == one.line.line} for n, text in sources.around(one.line)
                ]
                if one.line is not None
                else [],
            }
            for one in of.mistakes
        ],
    }


def _runs(made: Diagnosis) -> list[dict[str, str]]:
    """What was run: predicted against measured."""
    named = (("as it is", made.seen), ("as advised", made.verified))
    return [_run(name, one) for name, one in named if one is not None]


def _run(name: str, one: Seen) -> dict[str, str]:
    known = one.predicted >= 0 and one.step > 0
    return {
        "name": name,
        "setting": f"num_workers={one.setting.workers}",
        "predicted": duration(one.predicted) if known else "",
        "measured": duration(one.step),
        "off": f"{100 * (one.predicted / one.step - 1):+.0f} %" if known else "",
        "waiting": percent(one.share),
        "ready": f"{one.ready:.1f}" if one.ready >= 0 else "",
        "batches": str(one.batches),
    }
