"""A diagnosis of a loader for a terminal, and as JSON."""

from __future__ import annotations

from rich.text import Text

from gapless.model.loading import FORMAT, VERSION, Diagnosis, Prediction, Seen
from gapless.model.wording import count, duration, percent, size
from gapless.render._canvas import Canvas
from gapless.render._mistakes import mistakes
from gapless.render._style import Style
from gapless.render.json import document, plain
from gapless.rules._of_loader import findings


def as_json(made: Diagnosis, style: Style) -> str:
    """`made` as a JSON object in one line, every field in it, and what the rules find."""
    found = [
        {"code": rule.code, "name": rule.name, "evidence": list(hit.evidence), "remedy": hit.remedy}
        for rule, hit in findings(made)
    ]
    return document(FORMAT, VERSION, {"diagnosis": plain(made), "findings": found}, style)


def as_text(made: Diagnosis, style: Style) -> str:
    """`made` as text: the sentence, what to write, what a batch costs, what each setting gives."""
    canvas = Canvas(style)
    text = made.sentence
    end = "" if text.endswith((".", ")")) and ". (" in text else "."
    canvas.wrapped(Text(text[:1].upper() + text[1:] + end, style="bold"))
    for reason in why(made):
        canvas.hanging(Text("  why   ", style="dim"), Text(reason))
    if made.recommended:
        canvas.wrapped(Text(f"  DataLoader(..., {arguments(made)})", style="green"))
    canvas.wrapped(Text(what(made), style="dim"))
    _costs(canvas, made)
    _lines(canvas, made, style)
    _settings(canvas, made)
    _bounds(canvas, made)
    _runs(canvas, made)
    _found(canvas, made)
    if made.correctness is not None:
        mistakes(canvas, made.correctness)
    if made.notes:
        canvas.blank()
        for note in made.notes:
            canvas.hanging(Text("  note  ", style="dim"), Text(note))
    return canvas.text()


def why(made: Diagnosis) -> tuple[str, ...]:
    """Reasons of a doubt, where the sentence does not tell them."""
    return made.doubt.reasons if made.doubt is not None and made.doubt.kind == "refuted" else ()


def _found(canvas: Canvas, made: Diagnosis) -> None:
    """What the rules find in it, each with its evidence and what to write instead."""
    found = findings(made)
    if found:
        canvas.blank()
        canvas.clipped(Text("  What else it costs", style="bold"))
    for rule, hit in found:
        canvas.clipped(Text.assemble("  ", (rule.code, "bold cyan"), " ", (rule.name, "bold")))
        for number, one in enumerate(hit.evidence):
            canvas.hanging(Text("            " if number else "    seen    ", style="dim"), Text(one))
        canvas.hanging(Text("    instead ", style="dim"), Text(hit.remedy, style="green"))


def arguments(made: Diagnosis) -> str:
    """The recommended arguments that are not torch's defaults."""
    defaults = {"prefetch_factor": (None, 2), "persistent_workers": (False,), "pin_memory": (False,)}
    told = [
        f"{name}={value}"
        for name, value in made.recommended.items()
        if value not in defaults.get(name, ()) or name == "num_workers"
    ]
    return ", ".join(told)


def what(made: Diagnosis) -> str:
    """What was measured."""
    parts = [made.dataset]
    if made.around is None or not made.around.foreign:
        parts.append("iterable" if made.iterable else "map-style")
    if made.around is not None and not made.around.foreign:
        parts.append(f"in a DataLoader in {made.around.name}")
    parts.append(f"{made.length} batches an epoch" if made.length >= 0 else "unknown length")
    if made.fetch.inside:
        parts.append(f"{made.fetch.inside} items a batch, made by the dataset")
    elif made.fetch.batch_size:
        parts.append(f"{made.fetch.batch_size:.4g} items a batch")
    return " · ".join((*parts, f"measured for {made.duration:.1f} s"))


def _costs(canvas: Canvas, made: Diagnosis) -> None:
    fetch, transfer = made.fetch, made.transfer
    canvas.blank()
    canvas.clipped(Text("  What a batch costs        CPU time    waiting", style="bold"))
    around = made.around
    if around is not None and around.foreign:
        _cost(canvas, "the next batch", around.cpu, around.wall - around.cpu)
        canvas.clipped(Text(f"  {size(fetch.batch_bytes)} in {count(fetch.tensors, 'tensor')} a batch"))
        return
    items = "items, fetched at once" if fetch.at_once else f"items ({duration(fetch.item)} each)"
    size_of = max(fetch.batch_size, 1)
    _cost(canvas, items, fetch.item_cpu * size_of, fetch.item_wait * size_of)
    _cost(canvas, "collating", fetch.collate_cpu, 0)
    if transfer.batches:
        _cost(canvas, "sending, in a worker", transfer.send, 0)
        _cost(canvas, "receiving", transfer.receive, transfer.latency)
    if around is not None and around.wall:
        _cost(canvas, f"{around.name}, around it", around.cpu, around.wall - around.cpu)
    if transfer.pin >= 0:
        _cost(canvas, "pinning", transfer.pin, 0)
    if transfer.copy >= 0:
        _cost(canvas, "copying to the GPU", 0, transfer.copy)
    canvas.clipped(
        Text(
            f"  {size(fetch.batch_bytes)} in {count(fetch.tensors, 'tensor')} a batch, "
            f"{size(fetch.item_bytes)} an item"
        )
    )
    if transfer.batches:
        told = f"  a worker's first batch after {duration(transfer.first)} ({made.machine.start})"
        if transfer.private >= 0:
            told += f", {size(transfer.private)} of its own, {size(int(transfer.growth))} more a batch"
        canvas.wrapped(Text(told))


def _cost(canvas: Canvas, name: str, cpu: float, wait: float) -> None:
    canvas.clipped(Text(f"  {name:<24}{duration(cpu):>10}{duration(wait) if wait >= 500 else '':>11}"))


def _lines(canvas: Canvas, made: Diagnosis, style: Style) -> None:
    if not made.hot:
        return
    canvas.blank()
    canvas.clipped(Text("  Where making them takes its time", style="bold"))
    for one in made.hot:
        place = f"{style.path(one.line.file)}:{one.line.line}"
        canvas.clipped(Text.assemble(f"  {percent(one.share):>6}  {place}  ", canvas.code(one.line.code)))


def _settings(canvas: Canvas, made: Diagnosis) -> None:
    if not made.predictions:
        return
    canvas.blank()
    canvas.clipped(
        Text("  workers  prefetch      a step   waiting  ready  first batch   memory", style="bold")
    )
    advised, now = made.advised, made.now
    rows = list(made.predictions) if canvas.style.unfold else folded(made)
    for one in rows:
        same = advised is not None and alike(one, advised)
        yours = now is not None and alike(one, now)
        remark = one.excluded or (" < take" if same else "") + (" < now" if yours else "")
        prefetch = str(one.setting.prefetch) if one.setting.workers else "-"
        row = (
            f"  {one.setting.workers:>7}  {prefetch:>8}  {duration(one.step):>10}{percent(part(one)):>10}"
            f"{one.ready:>7.1f}{duration(one.first):>13}{size(one.memory):>9}{remark}"
        )
        canvas.clipped(Text(row, style="green" if same else "dim" if one.excluded else ""))
    if not canvas.style.unfold and len(made.predictions) > len(rows):
        canvas.clipped(Text("  --all shows every setting", style="dim"))


def alike(one: Prediction, other: Prediction) -> bool:
    """Whether two predictions are of the same workers and batches ahead."""
    pair = (one.setting.workers, one.setting.prefetch if one.setting.workers else 0)
    return pair == (other.setting.workers, other.setting.prefetch if other.setting.workers else 0)


def folded(made: Diagnosis) -> list[Prediction]:
    """One row for each number of workers; with the prefetch factor advised and the one in use as well."""
    special = [one for one in (made.advised, made.now) if one is not None]
    prefetch = 2
    return [
        one
        for one in made.predictions
        if not one.setting.workers
        or one.setting.prefetch == prefetch
        or any(alike(one, other) for other in special)
    ]


def part(one: Prediction) -> float:
    """The share of a step that waits."""
    return one.wait / one.step if one.step else 0.0


def bounds(made: Diagnosis) -> str:
    """What no setting can be faster than, stage by stage."""
    return ", ".join(f"{one.stage} {duration(one.least)}" for one in made.bounds if one.least >= 1_000)


def _bounds(canvas: Canvas, made: Diagnosis) -> None:
    if made.bounds:
        canvas.blank()
        canvas.hanging(Text("  no step is shorter than  ", style="dim"), Text(bounds(made)))


def _runs(canvas: Canvas, made: Diagnosis) -> None:
    foreign = made.around is not None and made.around.foreign
    for name, seen in (("as it is", made.seen), ("as advised", made.verified)):
        if seen is not None:
            canvas.hanging(Text(f"  run {name:<10}  ", style="dim"), Text(_run(seen, foreign)))


def _run(seen: Seen, foreign: bool) -> str:
    told = "" if foreign else f"num_workers={seen.setting.workers}: "
    told += f"{duration(seen.step)} a step, {percent(seen.share)} of it waiting"
    if seen.ready >= 0:
        told += f", {seen.ready:.1f} batches ready"
    if seen.predicted >= 0:
        off = 100 * (seen.predicted / seen.step - 1) if seen.step else 0.0
        told += f" (predicted {duration(seen.predicted)}, {off:+.0f} %)"
    return told
