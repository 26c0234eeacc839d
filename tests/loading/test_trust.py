"""When a prediction is told, and why not: on measurements made by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.loading import predict
from gapless.loading.sentence import notes, sentence
from gapless.loading.trust import (
    MAX_PREDICTION_FACTOR,
    calibrate_load,
    conclude_runs,
    find_doubt,
    find_reasons,
    is_faster,
    prediction_factor,
)
from gapless.model.loading import (
    Demand,
    Diagnosis,
    Doubt,
    Fetch,
    Machine,
    Prediction,
    Seen,
    Setting,
    Transfer,
    decode,
    encode,
)

MS = 1_000_000


def fetch(cpu: float = 40, wait: float = 0, delay: float = 0, **more: object) -> Fetch:
    """Batches of eight items that take so many milliseconds together."""
    of = {"item": cpu + wait + delay, "item_cpu": cpu, "item_wait": wait}
    each = {name: value * MS / 8 for name, value in of.items()}
    batches = ((int(cpu * MS), int(wait * MS)),) * 9
    return Fetch(items=80, batch_size=8, batches=batches, **each, **more)  # type: ignore[arg-type]


def run(workers: int, step: float, predicted: float, **more: object) -> Seen:
    setting = Setting(workers=workers, prefetch=2 if workers else 0)
    return Seen(setting=setting, batches=50, step=step * MS, predicted=predicted * MS, **more)  # type: ignore[arg-type]


def at(workers: int, step: float, wait: float = 0) -> Prediction:
    setting = Setting(workers=workers, prefetch=2 if workers else 0)
    return Prediction(setting=setting, step=step * MS, wait=wait * MS)


def make_diagnosis(**more: object) -> Diagnosis:
    """Two cores, a step of 20 ms; as it is 60 ms, with two workers 20, and both came true."""
    fields: dict[str, object] = {
        "machine": Machine(allowed=2, start="fork"),
        "demand": Demand(step=20 * MS, busy=0.2, source="given"),
        "fetch": fetch(others=0.0),
        "transfer": Transfer(batches=9, receive=0.5 * MS),
        "now": at(0, 60, 40),
        "advised": at(2, 20.5),
        "seen": run(0, 61, 60, others=0.1, had=0.99),
        "seen_advised": run(2, 21, 20.5, others=0.1, had=0.97),
    }
    return Diagnosis(**{**fields, **more})  # type: ignore[arg-type]


def said(of: Diagnosis) -> str:
    return sentence(conclude_runs(of))


def test_confirmed_predictions_are_reported_as_measured():
    message = said(make_diagnosis())
    assert message.endswith("take num_workers=2, a step then takes 21 ms instead of 61 ms")
    assert conclude_runs(make_diagnosis()).recommended["num_workers"] == 2


def test_code_that_did_not_run_is_reported_as_such():
    assert said(make_diagnosis(seen_advised=None, seen=None)).endswith(
        "20.5 ms instead of 60 ms (predicted, not run)"
    )


@given(factor=st.floats(0.2, 5), own=st.booleans())
def test_no_number_contradicts_its_own_run(factor, own):
    runs = (
        {"seen": run(0, 60 * factor, 60, others=0.0)}
        if own
        else {"seen_advised": run(2, 20 * factor, 20, others=0.0)}
    )
    conclusion = conclude_runs(make_diagnosis(**runs))
    wrong = max(factor, 1 / factor) > MAX_PREDICTION_FACTOR
    assert (conclusion.doubt is not None) == wrong
    if conclusion.doubt is not None:
        assert conclusion.doubt.kind == "refuted"
        assert conclusion.doubt.reasons
        assert " ms" not in sentence(conclusion)


def test_a_refuted_setting_is_advised_only_if_it_was_faster():
    conclusion = conclude_runs(make_diagnosis(seen_advised=run(2, 35, 20)))
    assert is_faster(conclusion)
    assert conclusion.recommended["num_workers"] == 2
    assert sentence(conclusion).endswith("num_workers=2 was faster than num_workers=0")
    conclusion = conclude_runs(make_diagnosis(seen_advised=run(2, 58, 20)))
    assert conclusion.recommended == {}
    assert sentence(conclusion).endswith("was not clearly faster than num_workers=0")


def test_a_setting_that_gains_nothing_when_it_is_run_is_not_advised():
    conclusion = conclude_runs(make_diagnosis(seen=run(0, 61, 55), seen_advised=run(2, 60, 50)))
    assert conclusion.doubt is None
    assert conclusion.recommended["num_workers"] == 0


def test_a_run_of_a_few_steps_says_nothing():
    assert prediction_factor(msgspec.structs.replace(run(2, 90, 20), batches=3)) == 1.0
    assert prediction_factor(run(2, 0, 20)) == prediction_factor(run(2, 20, -1)) == 1.0


@pytest.mark.parametrize(
    ("other_load", "busy"),
    [(0.0, False), (0.3, False), (1.0, True), (1.8, True), (-1.0, False)],
)
def test_who_has_the_cores_is_the_first_word(other_load, busy):
    conclusion = conclude_runs(make_diagnosis(fetch=fetch(delay=5, others=other_load)))
    assert (conclusion.doubt is not None and conclusion.doubt.kind == "busy") is busy
    if busy:
        assert sentence(conclusion) == (
            f"cannot be measured now: other programs use {other_load:g} of 2 cores. "
            "(Under this load a batch took 45 ms.)"
        )
        assert conclusion.recommended == {}


def test_others_that_came_during_a_run_count_as_well():
    doubt = find_doubt(make_diagnosis(seen_advised=run(2, 40, 20, others=1.4)))
    assert (doubt.kind, doubt.others) == ("busy", 1.4)


def test_others_on_cores_that_nobody_needs_do_not_count():
    large = Machine(allowed=64, start="fork", others=20.0)
    assert find_doubt(make_diagnosis(machine=large, fetch=fetch(others=20.0))) is None
    idle = fetch(cpu=0.1, wait=200, others=0.9)  # it sleeps, and so does the step
    of = make_diagnosis(fetch=idle, demand=Demand(step=20 * MS, busy=0.0), seen=None, seen_advised=None)
    assert find_doubt(of) is None


def test_who_gets_no_core_cannot_measure_whoever_has_it():
    doubt = find_doubt(make_diagnosis(fetch=fetch(delay=30, others=0.0)))
    assert doubt.kind == "busy"
    assert doubt.reasons == ("it had a core for only 57 % of the time in which it could compute",)
    limited = Machine(allowed=2, quota=0.6)  # a control group's limit is no other program
    assert find_doubt(make_diagnosis(machine=limited, fetch=fetch(delay=30, others=0.0))) is None


def test_an_interrupted_run_is_reported_up_to_the_interrupt():
    conclusion = conclude_runs(make_diagnosis(interrupted="workers", seen=None, seen_advised=None))
    assert conclusion.recommended == {}
    assert sentence(conclusion) == (
        "interrupted while trying a worker: a batch takes 40 ms to make, 40 ms of it CPU time; no setting "
        "was run"
    )
    assert conclude_runs(make_diagnosis(interrupted="mistakes")).doubt is None


@pytest.mark.parametrize(
    ("run_as", "why"),
    [
        ({"others": 0.6}, "other programs used 0.6 of 2 cores during the run, and 0 during the prediction"),
        ({"stolen": 0.4}, "the hypervisor took 0.4 of 2 cores for other machines"),
        ({"throttled": 3}, "the processor throttled 3 times because of heat"),
        ({"made": 9, "made_cpu": 60.0 * MS}, "a batch took 60 ms of CPU time in the run and 40 ms alone"),
        (
            {"made": 9, "made_cpu": 60.0 * MS, "faults": 4000.0},
            "a batch took 60 ms of CPU time in the run and 40 ms alone, touching 4,000 new memory pages, "
            "10 alone",
        ),
        (
            {"made": 9, "made_cpu": 40.0 * MS, "made_wait": 50.0 * MS},
            "a batch waited 50 ms in the run and 0 µs alone: 2 workers wait for the same resource, or "
            "for each other",
        ),
        (
            {"made": 9, "made_cpu": 40.0 * MS, "read": 3e6},
            "storage delivered 3 MB per batch in the run and 0 B when measured alone: the rest was in the "
            "page cache",
        ),
        (
            {"made": 9, "made_cpu": 41.0 * MS},
            "no reason was found: the batches took the same time as when measured alone, and the cores "
            "were available",
        ),
        (
            {},
            "no reason was found: the time for its batches is not known, and the cores were available",
        ),
        ({"again": 20.0 * MS}, "two runs of it took 40 ms and 20 ms per step"),
    ],
)
def test_only_reasons_that_were_measured(run_as, why):
    of = make_diagnosis(fetch=fetch(others=0.0, faults=10.0))
    assert list(find_reasons(of, run(2, 40, 20, **run_as))) == [why]


def test_the_share_of_a_core_is_reported_if_each_process_had_one():
    of = make_diagnosis(machine=Machine(allowed=8))
    assert list(find_reasons(of, run(2, 40, 20, had=0.5))) == [
        "its processes had a core for only 50 % of the time in which they could compute"
    ]


@pytest.mark.parametrize(
    ("cpu", "delay", "other_load", "calibrates"),
    [
        (40, 0, 0.0, 0.0),
        (40, 0, 2.0, 1.0),  # programs of little importance: they give way
        (40, 20, 2.0, 2.0),  # two thirds of a core: equal parts of two cores among three
        (40, 40, 1.0, 3.0),  # others get more than an equal part
        (0, 0, 2.0, 2.0),
    ],
)
def test_the_share_that_was_really_got_is_reckoned_with(cpu, delay, other_load, calibrates):
    calibrated_machine = calibrate_load(
        Machine(allowed=2, others=other_load), fetch(cpu=cpu, wait=1, delay=delay)
    )
    assert calibrated_machine.others == pytest.approx(calibrates)
    limited = Machine(allowed=2, others=other_load, quota=0.5)
    assert calibrate_load(limited, fetch(cpu=cpu, wait=1, delay=delay)) == limited


@pytest.mark.parametrize(("measured_load", "calibrates"), [(0.0, 0.0), (0.4, 0.4), (1.7, 1.0), (-1.0, 1.0)])
def test_others_are_those_of_the_time_in_which_items_were_made(measured_load, calibrates):
    calibrated_machine = calibrate_load(Machine(allowed=2, others=1.5), fetch(others=measured_load))
    assert calibrated_machine.others == pytest.approx(calibrates)


@pytest.mark.parametrize(
    ("machine", "note"),
    [
        (
            Machine(allowed=2, others=2.0),
            "other programs are using this machine (this process gets 1.0 of 2 cores): measure again when it "
            "is idle",
        ),
        (
            Machine(allowed=2, together=0.6),
            "the cores are hyperthreads: together they do the work of 1.2 of 2 cores",
        ),
        (Machine(allowed=2, quota=0.5), "the control group allows 0.5 of 2 cores"),
    ],
)
def test_cores_that_are_not_there_are_a_note(machine, note):
    assert note in notes(make_diagnosis(machine=machine))


@given(delay=st.floats(1, 400), allowed=st.integers(1, 16))
def test_the_simulated_machine_gives_one_process_what_it_got(delay, allowed):
    of = fetch(cpu=40, delay=delay)
    calibrated_machine = calibrate_load(Machine(allowed=allowed), of)
    if of.had < 0.98:
        assert calibrated_machine.share(1) == pytest.approx(of.had, rel=0.02)


def test_a_doubt_comes_back_from_disk_and_stays_for_another_step():
    conclusion = conclude_runs(make_diagnosis(fetch=fetch(others=1.8)))
    assert decode(encode(conclusion)).doubt == Doubt(kind="busy", others=1.8)
    again = predict.predict_again(conclusion, Demand(step=50 * MS))
    assert again.sentence.startswith("cannot be measured now")
    assert again.recommended == {}
