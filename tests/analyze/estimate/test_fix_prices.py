"""The price of a fix: what its remedy removes besides the wait."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programmes import SMALL, add, read, session

from gapless.analyze import report
from gapless.analyze.estimate.estimate import estimate
from gapless.analyze.estimate.removals import find_removals
from gapless.analyze.estimate.together import ToPrice
from gapless.analyze.run.steps import find_steps
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Report, Session, Site, SourceLine, WaitRule
from gapless.model.cause import Origin
from gapless.model.estimate import Estimate
from gapless.model.programme import Entry
from gapless.model.session import decode, encode
from gapless.model.use import Use, UseKind
from gapless.model.wording import duration
from gapless.render import Style, renderer
from gapless.rules import rules_of_kind, superfluous
from gapless.rules._by_use import REMEDIES
from gapless.rules.superfluous import Superfluous, superfluous_at

LARGE = 1 << 22
CHECK = Superfluous(copy=True, check=True)
MASK = Superfluous(copy=True, operator=True, instead="aten::where")


def operator(name: str, *inputs: tuple[int, ...], out: tuple[int, ...] = (), **more: object) -> Entry:
    """An operator on such tensors of float32."""

    def numel(shape: tuple[int, ...]) -> int:
        return shape[0] if shape else 1

    return Entry(
        name=f"aten::{name}", dtype="float32", inputs=inputs, outputs=(out,), tensors=len(inputs),
        elements=sum(map(numel, inputs)), reads=4 * sum(map(numel, inputs)), writes=4 * numel(out), **more,
    )  # fmt: skip


def size(name: str, site: int = 0) -> Entry:
    """A wait for the size of the result of the operator before it."""
    return Entry(kind="wait", name=f"aten::{name}", site=site, mechanism="size", waits=1)


def checked(site: int = 0, count: int = SMALL) -> list[Entry]:
    """A check for NaN that is read."""
    return [operator("isnan", (count,), out=(count,)), operator("any", (count,)), read(site)]


def selected(kept: int, of: int = LARGE, site: int = 0) -> list[Entry]:
    """A selection with a mask of as many of the elements."""
    return [operator("index", (of,), (of,), out=(kept,)), size("index", site)]


def priced(step: list[Entry], removed: dict[int, Superfluous], steps: int = 6) -> Estimate:
    run = session(*[step] * steps)
    result = estimate(run, find_steps(run.marks), ToPrice({n: [n] for n in range(len(run.sites))}, removed))
    assert result is not None
    assert result.refused == ""
    return result


def step_of(step: list[Entry]) -> float:
    return priced(step, {}).step.likely


HOST, GPU = [add()] * 60, [add(0.5)] * 20


@pytest.mark.parametrize("around", [(GPU, HOST), (HOST, HOST), (GPU, GPU), (HOST, GPU)])
def test_a_check_that_goes_saves_what_a_step_without_it_saves(around):
    """Against a second road: the programme run again without the entries."""
    before, after = around
    step = [*before, *checked(), *after, *checked(1), *after]
    result = priced(step, {0: CHECK, 1: CHECK})
    expected = result.step.likely - step_of([*before, *after, *after])
    assert result.prices.all == pytest.approx(expected, rel=0.07, abs=1_000)
    expected = result.step.likely - step_of([*before, *after, *checked(1), *after])
    assert result.prices.each[0].alone == pytest.approx(expected, rel=0.12, abs=2_000)
    assert result.prices.each[0].launches == 3


@pytest.mark.parametrize("around", [HOST, GPU])
def test_a_mask_that_stays_saves_what_a_step_with_it_saves(around):
    step = [*around, *selected(LARGE - 1), *HOST]
    (price,) = priced(step, {0: MASK}).prices.each
    where = operator("where", (LARGE,), (LARGE,), (), out=(LARGE,))
    rest = step_of([*around, msgspec.structs.replace(where, reads=5 * LARGE), *HOST])
    assert price.last == pytest.approx(step_of(step) - rest, rel=0.15)
    assert price.last > 1.05 * priced(step, {}).prices.each[0].last


PIECES = st.one_of(
    st.sampled_from([[add()], [add(0.3)], [add(2.0)], HOST[:20], [add(0.1, backward=True)]]),
    st.builds(checked, st.integers(0, 2)),
    st.builds(selected, st.sampled_from([LARGE - 1, LARGE // 4]), site=st.integers(3, 4)),
    st.builds(lambda site: [read(site)], st.integers(0, 2)),
)


@settings(deadline=None, max_examples=15)
@given(st.lists(PIECES, max_size=12))
def test_what_goes_with_waits_never_costs(pieces):
    step = [add(), *(entry for piece in pieces for entry in piece)]
    removed = {**dict.fromkeys(range(3), CHECK), **dict.fromkeys((3, 4), MASK)}
    run = session(*[step] * 5)
    sites = range(len(run.sites))
    groups = {**{n: [n] for n in sites}, -1: [*sites][:2], -2: [*sites]}
    steps = find_steps(run.marks)
    with_them = estimate(run, steps, ToPrice(groups, removed)).prices
    alone, whole = (
        {key: prices.each[at].alone for at, key in enumerate(groups)}
        for prices in (estimate(run, steps, ToPrice(groups)).prices, with_them)
    )
    for key in groups:
        assert 0 <= alone[key] <= whole[key] <= with_them.all
    for price in with_them.each:
        assert price.least_alone <= price.alone <= price.most_alone
        assert price.least_last <= price.last <= price.most_last
    assert whole[-1] >= max((whole[n] for n in sites[:2]), default=0)
    assert whole[-2] == with_them.all


def test_the_interval_reaches_from_the_wait_to_all_that_may_go():
    """Where the CPU limits the step, and it is not known what goes."""
    step = [*HOST, *checked(), *HOST]
    bare, certain = (priced(step, removed).prices.each[0] for removed in ({}, {0: CHECK}))
    assert (bare.least_last, bare.most_last) == (certain.least_last, certain.most_last)
    assert bare.last < 0.5 * certain.last <= 0.7 * bare.most_last
    assert bare.launches == 0
    explicit = priced([*GPU, *checked(), *GPU], {}).prices.each[0]
    assert explicit.most_last - explicit.least_last < 0.5 * (bare.most_last - bare.least_last)


def goes(step: list[Entry], removed: Superfluous) -> set[int]:
    """The positions of what goes for sure."""
    return {removal.entry for removal in find_removals(tuple(step), {0: removed}) if removal.certain}


def test_a_condition_goes_with_what_computes_it_and_no_more():
    small = (SMALL,)
    mine = operator("gt", small, out=small)
    first, second = operator("isnan", small, out=small), operator("isinf", small, out=small)
    both, every = operator("logical_or", small, small, out=small), operator("all", small)
    assert goes([mine, first, every, read()], CHECK) == {1, 2, 3}
    assert goes([mine, first, second, both, read()], CHECK) == {1, 2, 3, 4}
    assert goes([mine, add(), every, read()], CHECK) == {3}
    assert goes([both, every, read()], CHECK) == {2}
    assert goes([first, every, read()], Superfluous()) == set()
    compiled = msgspec.structs.replace(every, compiled=True)
    assert goes([first, compiled, read()], CHECK) == {2}


def test_a_selection_goes_where_its_mask_can_take_its_place():
    assert goes(selected(LARGE - 1), MASK) == {0, 1}
    assert goes(selected(LARGE // 4), MASK) == {1}
    written = operator("index_put_", (LARGE,), (LARGE,), (), out=(LARGE,))
    assert goes([written, size("index_put_")], MASK) == {0, 1}
    values = operator("index_put_", (LARGE,), (LARGE,), (9,), out=(LARGE,))
    assert goes([values, size("index_put_")], MASK) == {1}


def test_indices_go_where_an_index_that_uses_them_becomes_a_mask():
    followed = Superfluous(copy=True, operator=True, instead="followed")
    indices = [operator("nonzero", (SMALL,), out=(SMALL // 8, 1)), size("nonzero")]
    written = operator("index_put_", (SMALL,), (SMALL // 8,), (), out=(SMALL,))
    read_there = operator("index", (SMALL,), (SMALL // 8,), out=(SMALL // 8,))
    assert goes([*indices, written], followed) == {0, 1}
    assert goes([*indices, read_there], followed) == {1}
    assert goes([*indices, add()], followed) == {1}


def test_of_values_that_are_read_at_once_a_read_stays():
    once = Superfluous(copy=True, once=True)
    assert goes([read(), read(), add(), read()], once) == {1, 3}
    assert goes([read()], once) == set()


def with_uses(run: Session, *kinds: UseKind) -> Session:
    """`run`, whose values are for that."""
    uses = tuple(Use(kind=kind, line=9) for kind in kinds)
    return msgspec.structs.replace(
        run, sites=tuple(msgspec.structs.replace(site, uses=uses) for site in run.sites)
    )


@pytest.mark.parametrize(
    ("kinds", "words"),
    [((), "the syncs alone"), (("show",), "the syncs alone"), (("tensor",), "with 1 launch")],
)
def test_every_format_says_the_price_of_the_fix_or_of_the_syncs(kinds, words):
    run = with_uses(session(*[[*HOST, *[add(0.3)] * 20, read(), *HOST]] * 8), *kinds)
    result = report(decode(encode(run)))
    (finding,) = result.findings
    assert finding.price.launches == (words == "with 1 launch")
    amount = f"{duration(finding.price.last)} ("
    for name in ("text", "html"):
        document = " ".join(renderer(name)(result, Style(unfold=True, width=200)).split())
        assert amount in document
        assert words in document
    (price,) = [each["price"] for each in json.loads(renderer("json")(result, Style()))["findings"]]
    assert (price["last"], price["launches"]) == (finding.price.last, finding.price.launches)
    assert price["last"] == result.estimate.prices.each[0].last


def training(selected: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Report:
    """The report on a loop whose loss is a sum over what a mask selects."""
    with Emulator(EmulatorOptions("a100", programme=True)) as emulator:
        weight = torch.nn.Parameter(torch.ones(1 << 22, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        for _ in range(6):
            loss = selected(weight, weight > -1.0).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return report(emulator.session())


def test_a_selection_in_a_script_has_the_price_of_its_mask():
    """Against a second road: the script with the mask in its place."""
    before = training(lambda values, mask: values[mask])
    after = training(lambda values, mask: torch.where(mask, values, 0.0))
    (finding,) = before.findings
    assert finding.code == "GAP112"
    gain = before.estimate.step.likely - after.estimate.step.likely
    assert finding.price.last == pytest.approx(gain, rel=0.15)
    assert finding.price.least_last < gain < finding.price.most_last
    assert finding.price.launches > 10
    assert after.findings == ()


def site(**more: object) -> Site:
    line = SourceLine("/work/train.py", 3, "train", str(more.pop("code", "x.item()")))
    return Site(operator="aten::_local_scalar_dense", mechanism="read", stack=(line,), **more)


def test_what_a_remedy_removes_is_known_of_all_uses_or_of_none():
    tensor, show, append = (Use(kind=kind, line=4) for kind in ("tensor", "show", "append"))
    assert superfluous_at(site(uses=(tensor,)), "GAP101") == Superfluous(copy=True)
    assert superfluous_at(site(uses=(tensor, append)), "GAP101") == Superfluous(copy=True, once=True)
    assert superfluous_at(site(uses=(tensor, show)), "GAP101") == Superfluous()
    assert superfluous_at(site(), "GAP101") == Superfluous()
    assert superfluous_at(site(), "GAP142") == CHECK
    count = Use(kind="count", line=4)
    assert superfluous_at(site(uses=(count,)), "GAP112").instead == "aten::sum"
    assert superfluous_at(site(uses=(count, tensor)), "GAP112") == Superfluous()
    rows = Use(kind="selection", line=5)
    assert superfluous_at(site(uses=(count, rows)), "GAP112") == MASK
    assert superfluous_at(site(uses=(rows, Use(kind="empty", line=6))), "GAP112") == MASK
    for kind in ("range", "size", "slice", "condition"):  # the mask does not tell the number
        for code in ("GAP110", "GAP112"):
            assert superfluous_at(site(uses=(rows, Use(kind=kind, line=6))), code) == Superfluous()


@pytest.mark.parametrize(
    ("text", "goes"),
    [
        ("x[places]", True), ("x[places[:, 0]]", True), ("x.index_fill_(0, places, 0.5)", True),
        ("places.cpu()", False), ("places[0].cpu()", False), ("print(places)", False),
    ],
)  # fmt: skip
def test_indices_stay_where_they_are_used_as_numbers(text: str, goes: bool):
    uses = (Use(kind="selection", line=4, text="x[places]"), Use(kind="selection", line=5, text=text))
    assert superfluous_at(site(uses=uses), "GAP110").operator == goes


def test_what_a_remedy_removes_follows_the_origin_first():
    line = SourceLine("/work/train.py", 2, "train", "y = x.cpu()")
    back = site(cause=Origin(kind="copied-back", line=line))
    assert superfluous_at(back, "GAP124") == Superfluous(copy=True)
    assert superfluous_at(site(cause=Origin(kind="made", line=line)), "GAP120") == Superfluous()
    refilled = Origin(kind="unchanged", line=line, refilled=True)
    assert superfluous_at(site(cause=refilled), "GAP120") == Superfluous()
    copy = Site(operator="aten::_to_copy", mechanism="d2h", stack=(line,))
    assert superfluous_at(copy, "GAP122", joined=True) == Superfluous(copy=True)
    assert superfluous_at(copy, "GAP122") == Superfluous()
    for code, expected in (
        ("torch.tensor([1.0, 2.0], device=d)", True),
        ("torch.tensor([a, b], device=d)", False),
    ):
        sent = Site(
            operator="aten::_to_copy", mechanism="h2d", detail="list",
            stack=(SourceLine("/work/train.py", 3, "train", f"w = {code}"),),
        )  # fmt: skip
        assert superfluous_at(sent, "GAP121").copy == expected


def test_rules_and_uses_of_the_table_exist():
    codes = {rule.code for rule in rules_of_kind(WaitRule)}
    assert codes >= {*superfluous._BY_RULE, *superfluous._SELECTIONS, superfluous._CONSTANTS}
    assert set(REMEDIES) >= set(superfluous._BY_USE)
