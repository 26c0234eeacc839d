"""What a field script says about its own waits, in comments, and how a report is held against it.

A comment at the end of a line, or alone above it, speaks for that line::

    loss.item()            # waits: 1 every step
    print(loss.item())     # waits: 1 every 5 steps; evaluation
    model.to(device)       # waits: set-up
    trainer.train()        # waits: many every 10 steps; may wait: after, first step
    trainer.fit(model)     # waits: about 3 every 5 steps
    action.item()          # waits: 64 each rollout
    prof.step()            # may wait
    scaler.step(optimizer) # waits[fp16]: 1 every step
    probs.sample()         # waits[torch<2.5]: 2 every step

Each clause must be met by the report's findings at the line; what follows ``may wait`` is allowed and not
asked for. A finding that no clause of its line covers is false. A name in brackets limits a comment to one
way of running the script, or to older versions of torch. ``about`` is for what a library does at one line in
several rhythms: the number may be off by less than a half.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from typing import Any

from gapless.torch_internals import VERSION

_COMMENT = re.compile(
    r"#\s*(?:waits(?:\[(?P<variant>\w+|torch<2\.\d+)\])?:|(?P<may>may wait\b:?))(?P<text>.*)"
)
_EACH = re.compile(r"(?P<waits>\d+|many) each (?P<phase>[a-z ]+)")
_EVERY = re.compile(r"(?P<about>about )?(?P<waits>\d+|many) every (?:step|(?P<every>\d+) steps)")
_WHEN = {
    "set-up": {"set-up"},
    "first step": {"first-step"},
    "evaluation": {"evaluation"},
    # What follows the last evaluation counts to it until the model is trained again.
    "after": {"after", "evaluation"},
    # The end of an epoch lies between two steps, or behind the last one.
    "some steps": {"some-steps", "after", "evaluation", "phase"},
}
_ANYTHING = {"every-step", "some-steps", "first-step", "set-up", "evaluation", "phase", "after", "no-steps"}


@dataclass(frozen=True)
class Clause:
    """One thing that is expected of a line. `waits` and `every` are None where any number will do."""

    text: str
    when: frozenset[str]
    waits: int | None = None
    every: int | None = None
    required: bool = True
    tolerance: float = 0.0
    phase: str = ""

    def covers(self, finding: dict[str, Any]) -> bool:
        frequency = finding["frequency"]
        if self.phase and frequency.get("phase") != self.phase:
            return False
        return frequency["when"] in self.when and self.every in (None, frequency["every"])

    def met_by(self, findings: list[dict[str, Any]]) -> bool:
        """Whether `findings`, those at the clause's line, are what it asks for."""
        covered = [finding for finding in findings if self.covers(finding)]
        if not covered:
            return not self.required
        if self.waits is None:
            return True
        off = abs(sum(finding["frequency"]["waits"] for finding in covered) - self.waits)
        return off < self.tolerance or off == 0


def clause(text: str, required: bool = True) -> Clause:
    """The clause that `text` writes.

    Raises:
        ValueError: it is none.
    """
    text = text.strip()
    if text in _WHEN:
        return Clause(text, frozenset(_WHEN[text]), required=required)
    each = _EACH.fullmatch(text)
    if each is not None:
        waits = None if each["waits"] == "many" else int(each["waits"])
        return Clause(text, frozenset({"evaluation", "phase"}), waits, required=required, phase=each["phase"])
    match = _EVERY.fullmatch(text)
    if match is None:
        raise ValueError(f"not an expectation: {text!r}")
    waits = None if match["waits"] == "many" else int(match["waits"])
    tolerance = 0.5 if match["about"] else 0.0
    every = match["every"] and int(match["every"])
    when = "some-steps" if every else "every-step"
    return Clause(text, frozenset({when}), waits, every or None, required, tolerance)


def clauses(comment: str, variant: str = "") -> list[Clause]:
    """The clauses of a comment; none where it says nothing about waits or speaks of another variant."""
    match = _COMMENT.match(comment)
    if match is None or not _speaks_of(match["variant"] or variant, variant):
        return []
    if match["may"] and not match["text"].strip():
        return [Clause("may wait", frozenset(_ANYTHING), required=False)]
    required, _, allowed = (match["text"], "", "") if not match["may"] else ("", "", match["text"])
    if "may wait:" in required:
        required, _, allowed = required.partition("may wait:")
    parsed_clauses = [clause(part) for part in required.split(";") if part.strip()]
    return parsed_clauses + [clause(part, required=False) for part in allowed.split(",") if part.strip()]


def _speaks_of(name: str, variant: str) -> bool:
    if name.startswith("torch<"):
        return (2, int(name.rpartition(".")[2])) > VERSION
    return name == variant


def expectations(source: str, variant: str = "") -> dict[int, list[Clause]]:
    """What each line of `source` expects."""
    by_number: dict[int, list[Clause]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        wanted = clauses(token.string, variant)
        alone = not token.line[: token.start[1]].strip()
        if wanted:
            by_number.setdefault(token.start[0] + alone, []).extend(wanted)
    return by_number


def by_line(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of a report, those of several lines once for each line, with its own waits."""
    listed = []
    for finding in findings:
        for spot in finding["spots"] or [
            {"line": finding["line"], "backward": finding["backward"], "waits": None}
        ]:
            often = finding["frequency"]
            if spot["waits"] is not None:
                part = spot["waits"] / often["waits"] if often["waits"] else 0.0
                often = {**often, "waits": spot["waits"], "per_step": often["per_step"] * part}
            listed.append({**finding, "line": spot["line"], "backward": spot["backward"], "frequency": often})
    return listed


def races(report: dict[str, Any]) -> list[str]:
    """The races in a report, which the scripts have none of."""
    return [
        f"{finding['code']}: {finding['evidence']}"
        for finding in report["findings"]
        if finding["code"].startswith("GAP8")
    ]


def differences(report: dict[str, Any], path: str, source: str, variant: str = "") -> list[str]:
    """Where `report` and the comments in `source`, the script at `path`, disagree; empty where they agree."""
    wanted = expectations(source, variant)
    lines = source.splitlines()
    here: dict[int, list[dict[str, Any]]] = {}
    wrong = []
    for finding in by_line(report["findings"]):
        if finding["line"]["file"] == path:
            here.setdefault(finding["line"]["line"], []).append(finding)
        else:
            wrong.append(f"not at a line of the script: {_said([finding])} at {finding['line']}")
    for number in sorted(wanted.keys() | here.keys()):
        findings, required = here.get(number, []), wanted.get(number, [])
        unmet = [c.text for c in required if not c.met_by(findings)]
        false = [f for f in findings if not any(c.covers(f) for c in required)]
        if unmet or false:
            wrong.append(
                f"{number}: {lines[number - 1].strip()}"
                f"\n      expected: {'; '.join(c.text for c in required) or '-'}"
                f"\n      unmet: {'; '.join(unmet) or '-'}"
                f"\n      reported: {_said(findings) or '-'}"
            )
    return wrong


def _said(findings: list[dict[str, Any]]) -> str:
    said = []
    for finding in findings:
        often = finding["frequency"]
        every = f"/{often['every']}" if often["when"] == "some-steps" else ""
        every += f" {often['phase']}" if often.get("phase") else ""
        where = " in backward" if finding["backward"] else ""
        said.append(
            f"{finding['code']} {often['waits']:g} {often['when']}{every}{where} {finding['operators']}"
        )
    return "; ".join(said)
