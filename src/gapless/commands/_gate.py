"""Limits the user sets on a report, such as --fail-on and --max-waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from gapless.errors import UsageError
from gapless.model import Profile, Report
from gapless.model.wording import count, number, rate, rename_steps
from gapless.rules import all_rules


class CodesParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """Codes of rules, and prefixes of codes, as in ``GAP12,gap101``."""

    name = "CODES"

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        return parse_codes(value) if isinstance(value, str) else value


def fail_on_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option --fail-on."""
    return click.option("--fail-on", metavar="CODES", type=CodesParam(), help=help_text)


fail_on = fail_on_option("Exit with 1 if there are findings with these codes: GAP301,GAP11.")
"""The --fail-on option of commands that read profiles."""


def parse_codes(text: str) -> tuple[str, ...]:
    """Parse ``GAP12,gap101`` into codes and prefixes of codes.

    Raises:
        UsageError: no rule's code starts with one of them.
    """
    codes = tuple(part.strip().upper() for part in text.split(",") if part.strip())
    for code in codes:
        if not any(rule.code.startswith(code) for rule in all_rules()):
            raise UsageError(f"no rule code starts with {code!r}: `gapless rule` lists all codes")
    return codes


def describe_incomplete(profiles: Sequence[Profile]) -> list[str]:
    """Return, for each profile too incomplete to check against a limit, a line that says why."""
    lacking = [profile for profile in profiles if not profile.coverage.complete]
    return [f"cannot tell: {profile.coverage.reason} ({profile.path or 'profile'})" for profile in lacking]


def find_exceeded_limits(report: Report, max_waits: float | None, fail_on: tuple[str, ...]) -> list[str]:
    """Return a line for each limit that the report exceeds.

    `max_waits` limits the syncs of a steady step. `fail_on` names rules that no training step may break;
    set-up and evaluation may.
    """
    if report.environment.unused and (max_waits is not None or fail_on):
        return ["the script put nothing on the GPU, so there is nothing to check against a limit"]
    reasons = []
    if max_waits is not None:
        if not report.steps.seen:
            reasons.append("no training step was seen, so --max-waits cannot be checked")
        elif report.steps.waits_per_step > max_waits:
            syncs = rate(report.steps.waits_per_step, "sync", step="training step")
            reasons.append(
                f"{rename_steps(syncs, report.steps.noun)}, over the limit of {number(max_waits)} "
                "(--max-waits)"
            )
    codes: dict[str, int] = {}
    for finding in report.findings:
        if finding.code.startswith(fail_on or ("?",)) and finding.frequency.in_steps:
            codes[finding.code] = codes.get(finding.code, 0) + max(len(finding.lines), 1)
    if codes:
        named = ", ".join(f"{code} at {count(lines, 'line')}" for code, lines in sorted(codes.items()))
        reasons.append(f"{named} (--fail-on)")
    return reasons
