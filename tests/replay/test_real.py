"""Real profiles: the unchanged replay meets them, and prices keep their laws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from gapless.replay.fidelity import measure_fidelity
from gapless.replay.model import ReplayModel, build
from gapless.replay.price import GroupPrices, price_groups
from gapless.trace.timeline import HostKind, Timeline

Real = Callable[[str], Timeline]


def model(timeline: Timeline) -> ReplayModel:
    result = build(timeline)
    assert isinstance(result, ReplayModel)
    return result


def priced(replay_model: ReplayModel) -> GroupPrices[str]:
    """The waits priced by the outermost operator around them."""
    timeline = replay_model.timeline
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for row in replay_model.waits.host.tolist():
        around = [r for r in timeline.with_ancestors(row) if timeline.host.kind[r] == HostKind.OPERATOR]
        groups[timeline.names[timeline.host.name[around[-1]]] if around else ""].append(row)
    return price_groups(replay_model, groups)


@pytest.mark.parametrize(
    "ending", ["d242", "faff", "c14b", "41e7", "eeda", "5c94", "fa7b", "26e8", "8d5b", "776d", "cec1", "7ad4"]
)
def test_the_unchanged_replay_meets_the_profile(real: Real, ending: str) -> None:
    replayed_model = model(real(ending))
    fidelity = measure_fidelity(replayed_model)
    assert fidelity.trusted, fidelity.reason
    assert abs(fidelity.span_error) < 0.005
    assert fidelity.drift < 0.01
    assert fidelity.explained > 0.95
    assert fidelity.wait_error < 0.1
    assert replayed_model.program.edges_cut <= 1


@pytest.mark.parametrize("ending", ["d242", "c14b", "eeda", "26e8", "faff"])
def test_prices_of_real_profiles_keep_the_laws(real: Real, ending: str) -> None:
    replayed_model = model(real(ending))
    all_prices = priced(replayed_model)
    for price in all_prices.each.values():
        assert 0 <= price.alone <= min(price.blocked, all_prices.all)
        assert 0 <= price.last <= all_prices.all
        assert price.least_alone <= price.alone
        assert price.least_last <= price.last
    assert 0 <= all_prices.least_all <= all_prices.all
    if all_prices.all:
        assert all_prices.saved[-1] >= 0.9 * all_prices.all


def test_waits_replace_each_other(real: Real) -> None:
    """Removing what one call does saves little, removing what all do saves the time of ten steps."""
    replay_model = model(real("d242"))
    each = price_groups(replay_model, {row: [row] for row in replay_model.waits.host.tolist()})
    assert each.all > 290_000_000
    assert sum(price.alone for price in each.each.values()) < 0.3 * each.all


def test_blocking_amd_copies_are_no_host_work(real: Real) -> None:
    """The copies' own calls wait here; a replay that keeps their lengths finds nothing to save."""
    replay_model = model(real("faff"))
    assert replay_model.replay().span - replay_model.span(replay_model.waits.host.tolist()) > 150_000_000


def test_work_from_before_the_window_saves_next_to_nothing(real: Real) -> None:
    replay_model = model(real("776d"))
    saved = replay_model.replay().span - replay_model.span(replay_model.waits.host.tolist())
    assert replay_model.waits.blocked.sum() > 0.9 * replay_model.recorded
    assert saved < 0.01 * replay_model.recorded
