"""Which loaders of a script are measured, and what is said of them."""

from __future__ import annotations

import msgspec
import pytest
import torch
from loading import datasets as d
from torch.utils.data import DataLoader, TensorDataset

from gapless.loading import examine as room
from gapless.loading.examine import Interrupted, StepTimes, examine, keeps_up
from gapless.loading.forked import LoaderError, Stopped, can_fork
from gapless.loading.uses import Uses
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis, Doubt, Fetch, Machine, Prediction, Seen, Setting

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
MS = 1_000_000
PLENTY = 120.0
"""Seconds for what takes a moment, on a machine that others use as well."""


def run(loader, steps: int = 6, each: int = 1) -> Uses:
    """A loop over `loader` that has taken so many steps."""
    uses = Uses().start()
    batches = iter(loader)
    for _ in range(steps):
        for _ in range(each):
            next(batches)
        uses.stepped()
    uses.stop()
    return uses


def examined(uses: Uses, step: StepTimes, budget: float = 2.0) -> tuple[list[LoaderUse], list[LoaderUse]]:
    """What comes of it, and what was measured for it."""
    measured: list[LoaderUse] = []
    return list(examine(uses, step, budget, measured.append)), measured


def step(least: float, likely: float, most: float, count: int = 6, ranks: int = 1) -> StepTimes:
    return StepTimes(Range(int(least * MS), int(likely * MS), int(most * MS)), count, ranks)


def fetched(batch: float, tensors: int = 1, size: int = 1000) -> Fetch:
    return Fetch(batches=((int(batch * MS), 0),), tensors=tensors, batch_bytes=size)


@pytest.mark.parametrize(
    ("fetch", "workers", "least", "clearly"),
    [
        (fetched(1), 0, 100, True),
        (fetched(1), 0, 10, False),
        (fetched(10), 4, 100, True),
        (fetched(60), 4, 100, False),
        (fetched(1), 4, 2, False),
        (fetched(1, size=200_000_000), 4, 100, False),
        (None, 0, 100, False),
    ],
    ids=["little", "much", "by workers", "too much for one", "short step", "large batch", "not measured"],
)
def test_when_a_loader_clearly_keeps_up(fetch, workers, least, clearly):
    step = Range(least * MS, 2 * least * MS, 3 * least * MS)
    loader_use = LoaderUse(setting=Setting(workers=workers), per_step=1.0, step=step, fetch=fetch)
    assert keeps_up(loader_use) is clearly
    assert keeps_up(msgspec.structs.replace(loader_use, per_step=50.0)) is False


def test_one_that_keeps_up_is_not_measured():
    (loader_use,), measured = examined(run(DataLoader(d.Table(40))), step(500, 600, 700))
    assert measured == []
    assert loader_use.fetch is not None
    assert (loader_use.per_step, loader_use.diagnosis, loader_use.mistakes) == (1.0, None, ())


def test_one_that_feeds_no_steps_is_left_alone():
    uses = run(DataLoader(d.Table(40)), steps=1)
    (loader_use,), measured = examined(uses, step(1, 1, 1, count=8))
    assert (loader_use.per_step, loader_use.fetch, measured) == (0.0, None, [])


def test_without_an_estimate_only_mistakes_are_looked_for():
    (loader_use,), measured = examined(
        run(DataLoader(d.Numbers(), num_workers=2)), StepTimes(None, 6), PLENTY
    )
    assert [mistake.code for mistake in loader_use.mistakes] == ["GAP311"]
    assert (loader_use.diagnosis, measured) == (None, [])


def test_what_cannot_be_measured_is_said():
    (loader_use,), _ = examined(run(DataLoader(d.UsedUp(6))), step(1, 2, 3))
    assert loader_use.notes[0].startswith("it could not be measured: the loader yields no batch")


def predicted(late: float, of: float, workers: int) -> Prediction:
    return Prediction(setting=Setting(workers=workers, prefetch=2 * bool(workers)), step=of + late, wait=late)


def test_the_wait_over_all_that_the_estimate_allows(monkeypatch):
    """The longer the step the shorter the wait, for each of the batches of a step; others do not count."""
    machine = Machine(allowed=8, others=3.0)

    def diagnose(loader, budget, length, source):
        return Diagnosis(machine=machine, advised=predicted(0, 0, 4), fetch=fetched(30))

    machines = []

    def again(saved, demand):
        machines.append(saved.machine)
        now = predicted(60 * MS - demand.step, demand.step, 1)
        more = predicted(1 * MS, demand.step, 4)
        return msgspec.structs.replace(saved, demand=demand, now=now, advised=more)

    monkeypatch.setattr(room, "keeps_up", lambda loader_use: False)
    monkeypatch.setattr(room, "diagnose", diagnose)
    monkeypatch.setattr(room.predict, "predict_again", again)
    monkeypatch.setattr(room.predict, "predict_under", again)
    (loader_use,), measured = examined(run(DataLoader(d.Table(40)), each=2), step(20, 40, 60, ranks=2))
    assert loader_use.per_step == 2.0
    assert (loader_use.late.least, loader_use.late.likely, loader_use.late.most) == (
        60 * MS,
        80 * MS,
        100 * MS,
    )
    assert (loader_use.left.least, loader_use.left.most) == (2 * MS, 2 * MS)
    assert {(machine.allowed, machine.others) for machine in machines} == {(4, 0.0)}
    assert measured[0].line is not None


@pytest.mark.parametrize(
    ("workers", "host", "waits", "late"),
    [
        (0, None, 0.0, (25, 25, 25)),
        (0, 10, 0.0, (0, 0, 15)),  # made while the GPU works on what was launched
        (0, 10, 1.0, (0, 25, 25)),  # a wait may leave nothing of it
        (0, 60, 0.0, (25, 25, 25)),  # the host is the limit
        (1, 10, 0.0, (25, 25, 25)),  # workers that are behind
    ],
)
def test_what_the_loop_makes_while_the_gpu_works_is_not_waited_for(workers, host, waits, late):
    prediction = predicted(25 * MS, 40 * MS, workers)
    diagnosis = Diagnosis(now=prediction, advised=prediction)
    step_times = StepTimes(Range(20 * MS, 40 * MS, 60 * MS), 6, host=host and host * MS, waits=waits)
    leads = room._host_slack(step_times.length, step_times)
    exposed = [room._waits(diagnosis, 1.0, lead)[0] for lead in leads]
    assert tuple(reversed(exposed)) == tuple(prediction * MS for prediction in late)


def test_a_failure_of_the_measurement_is_a_note(monkeypatch):
    def fails(*_, **__):
        raise LoaderError("no batch")

    monkeypatch.setattr(room, "diagnose", fails)
    (loader_use,), _ = examined(run(DataLoader(d.Table(40))), step(0.001, 0.001, 0.001))
    assert loader_use.notes == ("it could not be measured: no batch",)


def test_what_was_known_when_the_end_was_asked_for(monkeypatch):
    """In the first look, or in the whole measurement, whoever asked."""

    class Terminated(BaseException):
        pass

    request = Terminated()

    def interrupted(work, kind, seconds, tell, look=None, *, keep=False):
        raise Stopped(request, fetched(30))

    uses = run(DataLoader(d.Table(40)))
    with monkeypatch.context() as patch:
        patch.setattr(room, "run_in_copy", interrupted)
        with pytest.raises(Interrupted) as caught:
            examined(uses, step(1, 2, 3))
    (known_use,) = caught.value.uses
    assert caught.value.request is request
    assert (known_use.per_step, known_use.fetch) == (1.0, fetched(30))
    assert known_use.notes[0].startswith(
        "until then: a batch takes 30 ms to make, 30 ms of it CPU time in __getitem__"
    )
    diagnosis = Diagnosis(fetch=fetched(30), interrupted="loop")
    monkeypatch.setattr(room, "diagnose", lambda *words, **named: diagnosis)
    with pytest.raises(Interrupted) as caught:
        examined(uses, step(0.001, 0.002, 0.003))
    assert isinstance(caught.value.request, KeyboardInterrupt)
    assert caught.value.uses[0].fetch == fetched(30)


@pytest.mark.parametrize("kind", ["busy", "refuted"])
def test_a_prediction_in_doubt(monkeypatch, kind):
    """Items are known in spite of a load; what a run has refuted is not told."""
    doubt = Doubt(kind=kind, others=1.8, reasons=("two runs of it took 4 ms and 9 ms per step",))
    machine = Machine(allowed=2, others=1.8, start="fork")
    prediction = predicted(25 * MS, 2 * MS, 0)
    diagnosis = Diagnosis(
        machine=machine, fetch=fetched(30), doubt=doubt, now=prediction, advised=prediction, sentence="no"
    )
    monkeypatch.setattr(room, "diagnose", lambda *words, **named: diagnosis)
    (loader_use,), _ = examined(run(DataLoader(d.Table(40))), step(0.001, 0.002, 0.003))
    if kind == "busy":
        assert loader_use.notes == (
            "other programs used 1.8 of 2 cores: the prediction was not checked by a run",
        )
        assert loader_use.late.least > 0
    else:
        assert loader_use.notes == (
            "no waiting time is reported: no (two runs of it took 4 ms and 9 ms per step)",
        )
        assert loader_use.late == Range()


@pytest.mark.parametrize("faster", [True, False])
def test_a_wait_that_ran_is_reported_despite_the_setting(monkeypatch, faster):
    """What it would leave is then what it left when it was run; nothing less where it was no faster."""
    doubt = Doubt(kind="refuted", reasons=("why",))
    now, then = predicted(25 * MS, 23 * MS, 0), predicted(4 * MS, 2 * MS, 4)
    own = Seen(setting=now.setting, batches=20, step=26 * MS, wait=24 * MS, predicted=25 * MS)
    tried = Seen(setting=then.setting, batches=20, step=8 * MS, wait=6 * MS, predicted=4 * MS)
    tried = tried if faster else msgspec.structs.replace(tried, step=25 * MS, wait=25 * MS)
    diagnosis = Diagnosis(
        machine=Machine(allowed=2, start="fork"),
        fetch=fetched(30),
        doubt=doubt,
        now=now,
        advised=then,
        seen=own,
        seen_advised=tried,
        recommended={"num_workers": 4} if faster else {},
    )
    monkeypatch.setattr(room, "diagnose", lambda *words, **named: diagnosis)
    (loader_use,), _ = examined(run(DataLoader(d.Table(40))), step(0.001, 0.002, 0.003))
    assert loader_use.notes == (
        "the recommended setting was run, and its time differed from the prediction (why)",
    )
    assert loader_use.late.likely == 25 * MS
    assert loader_use.left.likely == (6 * MS if faster else 25 * MS)


def test_a_loop_that_begins_anew_for_each_batch():
    loader = DataLoader(TensorDataset(torch.arange(40.0)), batch_size=2, shuffle=True)
    uses = Uses().start()
    for _ in range(6):
        next(iter(loader))
        uses.stepped()
    uses.stop()
    (loader_use,), measured = examined(uses, step(0.001, 0.001, 0.001))
    assert loader_use.restarted
    assert (loader_use.passes, loader_use.batches, loader_use.length, measured) == (6, 6, 20, [])


def test_short_epochs_are_no_restarts():
    uses = Uses().start()
    for _ in range(6):
        for _batch in DataLoader(d.Table(4), batch_size=4):
            uses.stepped()
    uses.stop()
    (loader_use,), _ = examined(uses, step(500, 600, 700))
    assert not loader_use.restarted


def test_mistakes_of_one_rank_say_nothing_of_the_others():
    sampler = torch.utils.data.DistributedSampler(d.Table(40), num_replicas=2, rank=0)
    uses = Uses().start()
    loader = DataLoader(d.Table(40), batch_size=5, sampler=sampler)
    for _ in range(2):
        for _batch in loader:
            uses.stepped()
    uses.stop()
    (loader_use,), _ = examined(uses, step(500, 600, 700, count=8))
    assert [mistake.code for mistake in loader_use.mistakes] == ["GAP316"]
