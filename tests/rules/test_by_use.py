"""The remedy of a read is chosen by what the value is for."""

from __future__ import annotations

import sys

import pytest

from gapless.analyze.session_report import report
from gapless.emulation.emulator import Emulator
from gapless.model import Finding, Report, Session, Site, SourceLine, Use
from gapless.model.use import NEEDED_AT_ONCE, UNDECIDED, UseKind
from gapless.rules import match_rule
from gapless.rules._by_use import REMEDIES as BY_USE

SCRIPT = """
import math
import torch

def validate(result, refuse, text):
    refused = refuse(result)
    if refused:
        raise RuntimeError(text)

device = "cuda"
weight = torch.ones(8, 8, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
table = torch.linspace(0, 1, 100)
total, count, peak, rate, losses = 0.0, 0, -1.0, 1.0, []
for step in range(6):
    tokens = torch.randint(0, 9, (4, 8), device=device)
    times = torch.arange(3, device=device)
    lengths = torch.tensor([3, 4, 5], device=device)
    loss = (weight * tokens[:, :8].float().mean()).square().mean()
    longest = lengths.max().item()
    part = tokens[:, :longest]
    places = torch.arange(longest, device=device)
    size = lengths.sum()
    grid = torch.ones(12, 2, device=device).view(size, -1)
    divergence = loss.item()
    rate = rate * 2 if divergence > 0.5 else rate / 2
    for t in times:
        part = part + math.cos(t.item())
    for t in times:
        part = part + table[t]
    rows = [row[keep].tolist() for row, keep in zip(tokens, tokens > 3)]
    losses.append(rows)
    validate(loss.detach(), torch.isnan, "NaN")
    total += loss.item()
    peak = max(peak, loss.item())
    losses.append(loss.item())
    scaled = torch.ones(2, device=device) * loss.item()
    chosen = tokens[tokens > 4].numel()
    print(step, loss.item())
    print(loss.item(), weight.sum().item(), scaled, chosen)
    torch.stack([loss]).item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(total, peak, grid.shape, places.shape)
"""
SPANS = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 records where an expression is")

REMEDIES = {
    "longest = lengths.max().item()": (
        "`tokens.shape[1]` is a bound that the CPU knows",
        "torch.arange(longest",
    ),
    "grid = torch.ones(12, 2, device=device).view(size, -1)": ("needs a size in each step",),
    "divergence = loss.item()": ("torch.where(divergence > 0.5, a, b)", "gapless.ops.read_later"),
    "part = part + math.cos(t.item())": ("walk over `times.tolist()`",),
    "part = part + table[t]": ("walk over `times.tolist()`", "on the CPU"),
    "rows = [row[keep].tolist() for row, keep in zip(tokens, tokens > 3)]": (
        "`tokens.cpu()`",
        "once, before the loop",
    ),
    "if refused:": ("bad |= ~torch.isfinite(result).all()", "step_if", "gapless.ops.read_later"),
    "total += loss.item()": ("`total = total + loss.detach().double()`", "`total`"),
    "peak = max(peak, loss.item())": ("torch.fmax(best, loss.detach())",),
    "losses.append(loss.item())": ("`losses.append(loss.detach())`", "torch.stack(losses).tolist()"),
    "scaled = torch.ones(2, device=device) * loss.item()": ("leave out the read",),
    "chosen = tokens[tokens > 4].numel()": ("`(tokens > 4).sum()`",),
    "print(step, loss.item())": ("every N steps", "gapless.ops.read_later"),
    "torch.stack([loss]).item()": ("delete the read",),
}
"""Parts of the remedy at each line."""
MAY_BE_RARER = {"print(step, loss.item())", "print(loss.item(), weight.sum().item(), scaled, chosen)"}
"""Lines whose remedy may say "every N steps"."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("by_use") / "train.py"
    path.write_text(SCRIPT)
    with Emulator() as emulator:
        exec(compile(SCRIPT, str(path), "exec"), {"__name__": "train"})
        return emulator.session()


@SPANS
@pytest.mark.parametrize("code", REMEDIES)
def test_the_remedy_fits_what_the_value_is_for(session: Session, code: str) -> None:
    sites = [site for site in session.sites if site.line is not None and site.line.code == code]
    assert sites
    for site in sites:
        remedy = match_rule(site).remedy(site)
        for part in REMEDIES[code]:
            assert part in remedy, remedy
        assert code in MAY_BE_RARER or "every N steps" not in remedy + match_rule(site).change_at(site)


@SPANS
def test_reads_of_one_line_are_read_together(session: Session) -> None:
    (finding,) = _findings(report(session, priced=False), "print(loss.item(), weight.sum().item()")
    assert "`torch.stack([loss, weight.sum()]).tolist()`" in finding.remedy + "".join(
        spot.remedy for spot in finding.spots
    )


def _findings(document: Report, code: str) -> list[Finding]:
    return [
        finding
        for finding in document.findings
        if finding.code == "GAP101" and any(line.code.startswith(code) for line in finding.lines)
    ]


@SPANS
def test_each_line_of_a_finding_has_its_own_remedy(session: Session) -> None:
    for finding in report(session, priced=False).findings:
        for spot in finding.spots:
            for site in finding.sites:
                if site.line == spot.line and site.uses and not spot.backward:
                    assert match_rule(site).remedy(site) in (spot.remedy or finding.remedy)


def _site(*uses: Use, call: str = "Tensor.item") -> Site:
    line = SourceLine("/home/me/train.py", 3, "train", "n = x.item()")
    return Site(
        operator="aten::_local_scalar_dense",
        mechanism="read",
        call=call,
        stack=(line,),
        expression="x.item()",
        uses=uses,
    )


@pytest.mark.parametrize("kind", BY_USE)
def test_each_kind_has_a_remedy_and_a_change(kind: UseKind) -> None:
    site = _site(Use(kind=kind, line=9, text="f(n)"))
    remedy, change = match_rule(site).remedy(site), match_rule(site).change_at(site)
    assert remedy
    assert not remedy.endswith(".")
    assert remedy.count("`") % 2 == 0
    assert 10 <= len(change) <= 60
    assert ("every N steps" in remedy + change) == (kind == "show")


@pytest.mark.parametrize("kind", sorted({*NEEDED_AT_ONCE, *UNDECIDED}))
def test_every_n_steps_is_not_said_of_what_may_be_needed_at_once(kind: UseKind) -> None:
    site = _site(Use(kind="show", line=4, text="print(n)"), Use(kind=kind, line=9, text="f(n)"))
    assert "every N steps" not in match_rule(site).remedy(site)


def test_two_uses_have_two_remedies_and_three_have_two() -> None:
    uses = [
        Use(kind="size", line=9, text="torch.zeros(n)"),
        Use(kind="accumulator", line=10, text="total += n"),
    ]
    remedy = match_rule(_site(*uses)).remedy(_site(*uses))
    assert "(line 9)" in remedy
    assert "(line 10)" in remedy
    more = _site(*uses, Use(kind="range", line=11, text="range(n)"))
    assert "(line 10)" not in match_rule(more).remedy(more)


def test_the_table_of_remedies_knows_each_kind() -> None:
    assert set(BY_USE) == set(UseKind.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rest", "read"),
    [
        ((), "and read `total` once, behind the loop"),
        (("show",), "and read `total` only where it is shown"),
        (("stop",), "read_later(value=total)"),
        (("condition",), "read_later(value=total)"),
    ],
)
def test_a_sum_that_the_loop_compares_is_not_only_shown(rest: tuple[UseKind, ...], read: str) -> None:
    total = Use(kind="accumulator", line=3, text="total += x.item()")
    site = _site(total, *(Use(kind=kind, line=4, text="total > 5") for kind in rest))
    remedy = match_rule(site).remedy(site)
    assert read in remedy
    assert ("only where it is shown" in remedy) == (rest == ("show",))


def test_the_sum_of_a_comparison_is_a_whole_number_and_stays_one() -> None:
    use = Use(kind="accumulator", line=3, text="right += (guess == y).sum().item()")
    line = SourceLine("/home/me/train.py", 3, "train", use.text)
    site = Site(
        operator="aten::_local_scalar_dense", mechanism="read", call="Tensor.item", stack=(line,),
        expression="(guess == y).sum().item()", uses=(use,),
    )  # fmt: skip
    assert "`right = right + (guess == y).sum().detach()`" in match_rule(site).remedy(site)
