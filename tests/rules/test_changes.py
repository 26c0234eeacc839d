"""Which syncs one change mends, and what stands in the list of things to do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.findings.finding import finding
from gapless.model import Frequency, Hit, Site, SourceLine, WaitRule
from gapless.rules import match_rule, rule, rules_of_kind

NAMES = st.from_regex(r"[A-Za-z_]{1,6}", fullmatch=True)


def site(code: str, line: int = 7, function: str = "main", *below: SourceLine, **more: object) -> Site:
    fields = {"operator": "aten::_local_scalar_dense", "mechanism": "read", **more}
    return Site(stack=(*below, SourceLine("/home/me/train.py", line, function, code)), **fields)  # type: ignore[arg-type]


def mask(code: str, line: int = 7, function: str = "main", **more: object) -> Site:
    return site(code, line, function, operator="aten::index", mechanism="size", **more)


def index(code: str, line: int, function: str) -> Site:
    return site(code, line, function, operator="aten::index", mechanism="h2d", detail="index")


def mended(*sites: Site) -> int:
    """By how many changes these are mended."""
    return len({(match_rule(site).code, match_rule(site).mended_with(site)) for site in sites})


def test_reads_of_one_function_are_one_change_whatever_they_read() -> None:
    assert mended(site("a = loss.item()", 7), site("b = norm.item()", 8), site("total += acc.item()", 9)) == 1


def test_reads_of_two_functions_are_two() -> None:
    assert mended(site("loss.item()", 7, "train"), site("loss.item()", 70, "evaluate")) == 2


def test_printing_and_reading_are_two() -> None:
    assert mended(site("a = loss.item()", 7), site("print(loss)", 8, call="Tensor.__repr__")) == 2


def test_three_selections_by_one_mask_are_as_many_as_their_remedies() -> None:
    same = [mask("loss = F.mse_loss(x[m], y[m])", 7), mask("loss = F.mse_loss(x[m], y[m])", 9)]
    assert mended(*same) == 1
    assert mended(*same, mask("z = x[other].mean()", 11)) == 2


def test_backward_of_a_line_is_mended_with_it() -> None:
    line = SourceLine("/home/me/train.py", 7, "main", "loss = F.mse_loss(x[m], y[m])")
    forward = Site(operator="aten::index", mechanism="size", stack=(line,))
    behind = (
        SourceLine("/site/torch/autograd/graph.py", 3, "_engine_run_backward", "", "torch"),
        SourceLine("/home/me/train.py", 9, "main", "loss.backward()"),
    )
    backward = Site(
        operator="aten::index",
        mechanism="size",
        stack=behind,
        forward=(line,),
        node="IndexBackward0",
    )
    assert match_rule(forward).code == match_rule(backward).code == "GAP112"
    assert mended(forward, backward) == 1


def test_index_copies_are_mended_over_the_whole_class() -> None:
    copies = [
        index(f"x[i{n}]", n, f"Matcher.{name}") for n, name in enumerate(("forward", "cost", "forward"))
    ]
    assert {match_rule(copy).code for copy in copies} == {"GAP124"}
    assert mended(*copies) == 1
    assert mended(*copies, index("x[i]", 50, "Loss.forward")) == 2
    assert (
        mended(index("x[i]", 1, "forward"), index("x[i]", 2, "backward")) == 2
    )  # a profile knows no classes


@pytest.mark.parametrize(
    ("function", "of_function", "of_class"),
    [
        ("main", "main", "main"),
        ("Net.forward", "Net.forward", "Net"),
        ("Net.forward.<locals>.<lambda>", "Net.forward", "Net"),
        ("Net.forward.<locals>.<genexpr>.<locals>.<listcomp>", "Net.forward", "Net"),
        ("main.<locals>.step", "main.<locals>.step", "main.<locals>.step"),
        ("main.<locals>.Net.forward", "main.<locals>.Net.forward", "main.<locals>.Net"),
        ("<module>", "<module>", "<module>"),
        ("", "", ""),
    ],
)
def test_functions_and_classes_by_their_names(function: str, of_function: str, of_class: str) -> None:
    read, copy = site("x.item()", 1, function), index("x[i]", 1, function)
    assert match_rule(read).mended_with(read)[1] == of_function
    assert match_rule(copy).mended_with(copy)[1] == of_class


@given(NAMES, NAMES, st.integers(1, 99), st.integers(1, 99))
def test_two_files_are_never_mended_together(first_name: str, other: str, first: int, second: int) -> None:
    for each in rules_of_kind(WaitRule):
        here, second_site = (
            Site(operator="aten::x", mechanism="read", stack=(SourceLine(file, at, "f", "y = x"),))
            for file, at in ((f"a/{first_name}.py", first), (f"b/{other}.py", second))
        )
        assert each.mended_with(here) != each.mended_with(second_site)


def test_a_library_that_waits_is_not_told_to_change_its_code() -> None:
    below = SourceLine("/site/somelib/core.py", 12, "check", "if torch.equal(a, b):", "somelib")
    own = site("if torch.equal(a, b):", operator="aten::equal")
    within = site("somelib.check(a, b)", 7, "main", below, operator="aten::equal")
    assert match_rule(own).code == match_rule(within).code == "GAP104"
    assert match_rule(own).change_at(own) == rule("GAP104").change
    assert match_rule(within).change_at(within) == "call `check` of somelib less often"
    assert mended(own, within) == 2


def test_an_option_of_the_library_is_named_where_it_is_known() -> None:
    lbfgs = SourceLine("/site/torch/optim/lbfgs.py", 1, "LBFGS.step", "float(loss)", "torch")
    wait = site("optimizer.step(closure)", 7, "main", lbfgs)
    assert match_rule(wait).change_at(wait) == "fewer iterations of LBFGS: `max_iter`"
    pinned = site(
        "x = torch.randn(4).to(device)", operator="aten::_to_copy", mechanism="h2d", detail="pageable"
    )
    assert match_rule(pinned).change_at(pinned) == "create the tensor on the GPU"


def test_a_finding_has_the_change_of_its_hit_its_site_or_its_rule() -> None:
    often = Frequency(when="every-step", waits=1.0)
    hit = Hit(evidence=(), remedy="in many words")
    starved = finding(rule("GAP301"), msgspec.structs.replace(hit, change="`num_workers=4`"), often)
    assert starved.change == "`num_workers=4`"
    assert finding(rule("GAP301"), hit, often).change == rule("GAP301").change
    lbfgs = SourceLine("/site/torch/optim/lbfgs.py", 1, "LBFGS.step", "float(loss)", "torch")
    wait = site("optimizer.step(closure)", 7, "main", lbfgs)
    assert finding(match_rule(wait), hit, often, sites=(wait,)).change == match_rule(wait).change_at(wait)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (
            "if loss.isnan().any(): raise RuntimeError",
            "collect the check on the GPU, look at it a step later",
        ),
        ("if not torch.isfinite(loss):", "collect the check on the GPU, look at it a step later"),
        ("assert (x >= 0).all()", "collect the check on the GPU, look at it a step later"),
        ("if loss < best:", "choose on the GPU with `torch.where`"),
        ("worst = max(worst, loss)", "choose on the GPU with `torch.where`"),
    ],
)
def test_nothing_is_to_be_chosen_where_a_check_only_raises(code: str, change: str) -> None:
    condition = site(code, call="Tensor.__bool__")
    assert match_rule(condition).change_at(condition) == change
