"""Programs whose every variant can be run: what the replay predicts is what the changed program takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay.machine import Step, profiled, takes

from gapless.replay.model import ReplayModel, ReplayRefusal, build
from gapless.replay.price import price_groups


def modelled(steps: Sequence[Step]) -> tuple[ReplayModel, dict[int, int]]:
    timeline, rows = profiled(steps)
    model = build(timeline)
    assert not isinstance(model, ReplayRefusal)
    return model, rows


DEEP = [Step("launch", 500)] * 20
LAUNCH_BOUND = [Step("launch", 2)] * 20
READ = Step("read")


def test_one_wait_among_deep_queues_is_free() -> None:
    model, rows = modelled([*DEEP, READ, Step("host", 10), *DEEP])
    price = price_groups(model, {"read": [rows[20]]}).each["read"]
    assert price.blocked > 9_900_000
    assert price.alone < 50_000


def test_three_waits_in_a_row_help_only_together() -> None:
    """Kernels, three reads, a stretch of host work: each read alone is stood in for by the others."""
    steps = [*DEEP, READ, READ, READ, Step("host", 8000), *DEEP]
    model, rows = modelled(steps)
    prices = price_groups(model, {name: [rows[20 + name]] for name in range(3)})
    assert max(price.alone for price in prices.each.values()) < 100_000
    assert min(price.last for price in prices.each.values()) > 7_500_000
    assert prices.all == pytest.approx(takes(steps) - takes(steps, [20, 21, 22]), abs=30_000)
    assert set(prices.shortest) == {0, 1, 2}
    assert prices.saved[-1] == prices.all


def test_a_wait_in_a_launch_bound_stretch() -> None:
    """Nothing is queued: the wait costs its own length and no more."""
    steps = [*LAUNCH_BOUND, READ, *LAUNCH_BOUND]
    model, rows = modelled(steps)
    price = price_groups(model, {"read": [rows[20]]}).each["read"]
    assert price.alone == pytest.approx(takes(steps) - takes(steps, [20]), abs=2_000)
    assert 0 < price.alone <= price.blocked < 30_000


def test_a_pinned_copy() -> None:
    steps = [*DEEP, Step("send"), Step("host", 3000), *DEEP]
    model, _ = modelled(steps)
    outcome = model.replay(model.pinned())
    assert outcome.span == pytest.approx(takes(steps, [20]), abs=10_000)
    assert model.replay().span - outcome.span > 2_900_000


def test_the_profilers_own_synchronize_is_never_removed() -> None:
    model, _ = modelled([*DEEP])
    final = model.waits.host[model.waits.final]
    assert len(final) == 1
    assert model.span(final.tolist()) == model.span()
    assert price_groups(model, {"final": final.tolist()}).each["final"].kept == 1


def test_the_queue_is_bounded() -> None:
    """Without the waits the host would run ahead of the device by more launches than fit."""
    steps = [*[Step("launch", 20)] * 1500, READ, *[Step("launch", 20)] * 1500, READ, Step("host", 9000)]
    model, rows = modelled(steps)
    bounded = takes(steps, [1500])
    assert model.span([rows[1500]]) == pytest.approx(bounded, rel=0.005)


def test_copies_do_not_wait_for_other_streams() -> None:
    steps = [Step("launch", 5000, 7), Step("read", stream=9), Step("host", 100), Step("launch", 10, 9)] * 6
    model, rows = modelled(steps)
    assert model.replay().span == pytest.approx(takes(steps), abs=5_000)
    assert model.span(rows.values()) == pytest.approx(takes(steps, list(rows)), abs=60_000)


steps = st.lists(
    st.one_of(
        st.integers(1, 400).map(lambda length: Step("host", length)),
        st.integers(2, 400).map(lambda length: Step("launch", length)),
        st.sampled_from([Step("sync"), Step("read"), Step("send")]),
    ),
    min_size=4,
    max_size=30,
)
# Enough of each kind for every latency to be fitted.
LEARN = [Step("host", 40), Step("launch", 5), Step("host", 40), READ, Step("host", 40), Step("send")] * 6
LEARN += [Step("host", 40), Step("launch", 9), Step("sync"), Step("host", 40), Step("sync")] * 6
LEARN += [Step("launch", 30)] * 20 + [Step("sync")]


@settings(max_examples=40, deadline=None)
@given(steps, st.data())
def test_any_program(program: list[Step], data: st.DataObject) -> None:
    whole = [*LEARN, *program]
    model, rows = modelled(whole)
    waits = [position for position in rows if position >= len(LEARN)]
    some = data.draw(st.sets(st.sampled_from(waits))) if waits else set()
    assert model.replay().span == pytest.approx(takes(whole), abs=2_000 + 500 * len(program))
    gone = [rows[position] for position in some]
    truth = takes(whole) - takes(whole, some)
    assert model.replay().span - model.span(gone) == pytest.approx(truth, abs=2_000 + 500 * len(program))


@settings(max_examples=40, deadline=None)
@given(steps, st.data())
def test_the_laws(program: list[Step], data: st.DataObject) -> None:
    model, rows = modelled([Step("launch", 5), *program, Step("launch", 5)])
    spent = model.replay()
    assert model.span([]) == spent.span  # removing nothing changes nothing
    order = data.draw(st.permutations(list(rows.values())))
    spans = [model.span(order[:n]) for n in range(len(order) + 1)]
    assert spans == sorted(spans, reverse=True)  # removing more never lengthens
    assert model.span(reversed(order)) == spans[-1]  # nor does the order matter
    groups = {name: order[name::3] for name in range(3)}
    prices = price_groups(model, groups)
    for price in prices.each.values():
        assert 0 <= price.alone <= price.blocked
        assert price.last >= 0
        assert price.alone <= prices.all
    assert prices.all == spans[0] - spans[-1]
    assert prices.all <= sum(price.blocked for price in prices.each.values())
    if prices.all:
        assert prices.saved[-1] >= 0.9 * prices.all
        assert list(prices.saved) == sorted(prices.saved)
