"""Create a `Finding` from a rule's hit: the only place that creates them."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Finding, Frequency, Hit, Loss, Rule, Site, SourceLine, WaitRule
from gapless.model.profile import Price
from gapless.model.wording import count

_TORCH_FOLDERS = ("aten/", "torch/")
"""Folders of PyTorch's own sources."""


def finding(
    rule: Rule,
    hit: Hit,
    frequency: Frequency,
    *,
    sites: Sequence[Site] = (),
    line: SourceLine | None = None,
    place: str = "",
    backward: bool | None = None,
    loss: Loss | None = None,
    price: Price | None = None,
) -> Finding:
    """Return the finding for `hit` of `rule`.

    `sites` are all sites it covers (default: that of the hit), `line` is the line to change (default: that of
    the first site) and `place` is named if there is no line. `backward` says whether it happens in the
    backward of the line (default: read from the first site).
    """
    sites = tuple(sites) or ((hit.site,) if hit.site is not None else ())
    first = sites[0] if sites else Site(operator="", mechanism="none")
    line = line or first.line
    return Finding(
        code=rule.code,
        name=rule.name,
        line=line,
        place="" if line is not None else place,
        frequency=frequency,
        remedy=hit.remedy,
        change=hit.change or (rule.change_at(first) if isinstance(rule, WaitRule) else rule.change),
        evidence=hit.evidence,
        loss=loss,
        price=price,
        operators=tuple(dict.fromkeys(site.operator for site in sites if site.operator)),
        library_stack=first.library_frames,
        backward=first.in_backward and bool(first.forward) if backward is None else backward,
        node=first.node,
        bytes=hit.bytes,
        sites=sites,
    )


def source_basis(sites: Sequence[Site]) -> tuple[str, ...]:
    """Say that these sites wait according to a library's source, not observed on a GPU; empty if observed."""
    basis = dict.fromkeys(site.basis for site in sites if site.basis)
    if not basis:
        return ()
    first, *rest = basis
    origin = "PyTorch's" if first.startswith(_TORCH_FOLDERS) else "the library's"
    file = first.split(":")[0].split(",")[0].rsplit("/", 1)[-1]
    more = f" and {count(len(rest), 'more place')}" if rest else ""
    some = "" if all(site.basis for site in sites) else "some of it "
    return (f"{some}from {origin} source ({file}{more}), not observed on a GPU",)
