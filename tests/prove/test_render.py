"""A proof as text and as JSON: its own part of the document."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gapless.analyze import report
from gapless.model import Finding, Frequency, SourceLine
from gapless.model.estimate import Range
from gapless.model.proof import (
    CallCost,
    CaseResult,
    Difference,
    Duration,
    Interval,
    Proof,
    Sweep,
    SweepRow,
    Timing,
)
from gapless.prove.sweep import make_sweep
from gapless.prove.timing import faster_side
from gapless.prove.verdict import make_verdict
from gapless.render import Style, renderer

EXPECTED = Path(__file__).parent / "expected"


def around(value: float, spread: float = 0.05) -> Interval:
    return Interval(median=value, low=value * (1 - spread), high=value * (1 + spread))


def timing(ratio: float, clock="GPU", spread: float = 0.05) -> Timing:
    def side(length: float) -> Duration:
        if clock == "CPU":
            return Duration(total=around(length))
        return Duration(total=around(length), host=around(0.4 * length), device=around(0.9 * length))

    quotient = around(ratio, spread)
    return Timing(
        before=side(ratio * 2e6),
        after=side(2e6),
        ratio=quotient,
        faster=faster_side(quotient),
        clock=clock,
        calls=(90, 280),
        rounds=40,
    )


def finding(line: int, backward: bool = False) -> Finding:
    return Finding(
        code="GAP112",
        name="boolean-mask-read",
        line=SourceLine("/work/losses.py", line, "original", "x[mask].mean()"),
        frequency=Frequency(when="every-step", waits=1, per_step=1, every=1, total=6),
        remedy="`torch.where(mask, x, 0.0).sum() / mask.sum()` is the same mean",
        backward=backward,
    )


COSTS = (
    CallCost(
        waits=2,
        first=3,
        operators=9,
        peak=7688,
        findings=(finding(9), finding(9, backward=True)),
        estimate=Range(160_000, 210_000, 300_000),
    ),
    CallCost(waits=0, first=0, operators=11, peak=7688, estimate=Range(70_000, 90_000, 120_000)),
)
SAME = (
    CaseResult(name="as given", outcome="same"),
    CaseResult(name="empty mask", outcome="same", made="edge"),
    CaseResult(name="negative labels", outcome="both raise", made="edge", why="IndexError: out of bounds"),
    CaseResult(name="empty batch", outcome="dropped", made="edge", why="ValueError: no rows"),
)
DIFFERENT = (
    *SAME[:1],
    CaseResult(
        name="empty mask",
        outcome="differs",
        made="edge",
        differences=(
            Difference(
                where="gradient of logits",
                before="0",
                after="0.25",
                largest=0.25,
                at=(0, 3),
                share=1 / 12,
                rtol=1.3e-6,
                atol=1e-5,
            ),
            Difference(where="output", kind="dtype", before="float32", after="float64"),
            Difference(where="gradient through output", kind="gradient", after="is cut off"),
            Difference(where="output", call=2, before="1", after="nan"),
        ),
    ),
)


def proof(cases=SAME, time=None, costs=COSTS, **more) -> Proof:
    return Proof(
        verdict=make_verdict(cases, costs, time),
        same=all(case.outcome != "differs" for case in cases),
        before="/work/losses.py:original",
        after="/work/losses.py:fixed",
        cases=cases,
        device="NVIDIA H200" if time is None or time.clock == "GPU" else "CPU",
        gpu="NVIDIA A100-SXM4-80GB",
        gradients=True,
        costs=costs,
        time=time,
        **more,
    )


def shown(result: Proof, style: Style) -> str:
    return renderer("text")(report(result), style)


@pytest.mark.parametrize(
    ("time", "words"),
    [
        (timing(3.1), "The same, and 3.1× (2.9–3.3) faster; no sync per call instead of 2"),
        (timing(1.01), "The same, with no measurable difference in time (0.96–1.06); no sync"),
        (timing(0.7), "The same, but slower here: 0.70× (0.66–0.73); no sync per call instead of 2"),
        (timing(3.1, "CPU"), "The same, and 3.1× (2.9–3.3) faster in CPU time; no sync"),
        (timing(0.7, "CPU"), "The same, but slower here: 0.70× (0.66–0.73, CPU time); no sync"),
        (None, "The same; no sync per call instead of 2"),
    ],
    ids=["faster", "as-fast", "slower", "faster-cpu", "slower-cpu", "not-measured"],
)
def test_verdicts(time, words):
    assert proof(time=time).verdict.startswith(words)


def test_the_verdict_of_what_is_not_the_same():
    assert proof(DIFFERENT).verdict == (
        "Not the same: case `empty mask`, gradient of logits, largest difference 0.25 (0.25 instead of 0); "
        "no sync per call instead of 2"
    )
    again = msgspec.structs.replace(DIFFERENT[1], name="odd sizes")
    assert (
        "(1 other case too); 1.50× (1.42–1.58) faster; no" in proof((*DIFFERENT, again), timing(1.5)).verdict
    )
    assert proof(costs=(COSTS[0], COSTS[0])).verdict.endswith("2 syncs per call, as before")


SWEEP = make_sweep(
    "density",
    [
        SweepRow(value=0.001, same=True, time=timing(0.5)),
        SweepRow(value=0.01, same=True, time=timing(0.99)),
        SweepRow(value=0.1, same=False, time=timing(2.0)),
    ],
)


@pytest.mark.parametrize(
    ("name", "result", "style"),
    [
        ("same", proof(time=timing(3.1)), Style(folder="/work")),
        (
            "different",
            proof(
                DIFFERENT,
                again="gapless compare losses.py:original losses.py:fixed --case 'empty mask'",
                notes=("only the first modifies its input labels in place",),
            ),
            Style(folder="/work", unicode=False),
        ),
        ("unfolded", proof(DIFFERENT + SAME[2:], timing(0.7, "CPU")), Style(folder="/work", unfold=True)),
        ("sweep", proof(sweep=SWEEP, costs=()), Style(folder="/work")),
    ],
    ids=["same", "different", "unfolded", "sweep"],
)
def test_text(name, result, style):
    text = shown(result, style)
    path = EXPECTED / f"{name}.txt"
    if (
        not path.exists()
    ):  # after an intended change: delete the file, run the test twice, and read the new file
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was not there and has been written: read it")
    assert text == path.read_text(encoding="utf-8")
    rows = text.splitlines()
    assert max(map(len, rows)) <= 80
    assert not any(row.endswith(" ") for row in rows)


def test_a_sweep_in_which_nobody_overtakes():
    for ratios, words in (
        ((2.0, 3.0), "after is faster at every value"),
        ((1.0, 1.0), "No measurable difference at any value"),
    ):
        sweep = make_sweep(
            "n", [SweepRow(value=n, same=True, time=timing(ratio)) for n, ratio in enumerate(ratios)]
        )
        assert words in " ".join(shown(proof(sweep=sweep), Style()).split())


def test_json_has_every_field_and_no_numbers_that_are_none():
    result = proof(DIFFERENT, timing(2.0), sweep=SWEEP)
    text = renderer("json")(report(result), Style())
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert text.count("\n") == 1
    assert (document["kind"], document["verdict"]) == ("proof", result.verdict)
    assert set(document["proof"]) == set(Proof.__struct_fields__)
    assert document["proof"]["costs"][0]["estimate"] == {"least": 160_000, "likely": 210_000, "most": 300_000}
    bare = msgspec.structs.replace(
        result, costs=tuple(msgspec.structs.replace(cost, estimate=None) for cost in result.costs)
    )
    again = json.loads(renderer("json")(report(bare), Style()))["proof"]
    assert msgspec.convert(again, Proof) == bare
    assert isinstance(result.sweep, Sweep)
