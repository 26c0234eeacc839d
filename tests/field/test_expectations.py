"""The comments' language, and that a report can be wrong by them."""

from __future__ import annotations

from typing import Any

import pytest
from field.expectations import clauses, differences, expectations

SOURCE = """\
model.to(device)  # waits: set-up
# waits: 2 every step; 1 every 5 steps; may wait: after
loss.item()
quiet()
prof.step()  # may wait
scaler.step()  # waits[fp16]: 1 every step
"""


def finding(line: int, when: str, waits: float = 1, every: int = 0, file: str = "s.py") -> dict[str, Any]:
    return {
        "code": "GAP101",
        "line": {"file": file, "line": line},
        "frequency": {"when": when, "waits": waits, "every": every},
        "operators": ["aten::item"],
        "backward": False,
        "spots": [],
    }


GOOD = [
    finding(1, "set-up", 7),
    finding(3, "every-step", 1, 1),
    finding(3, "every-step", 1, 1),
    finding(3, "some-steps", 1, 5),
]


def wrong(findings: list[dict[str, Any]], variant: str = "") -> list[str]:
    return differences({"findings": findings}, "s.py", SOURCE, variant)


def test_a_comment_alone_speaks_for_the_line_below() -> None:
    assert set(expectations(SOURCE)) == {1, 3, 5}
    assert set(expectations(SOURCE, "fp16")) == {1, 3, 5, 6}


def test_a_report_that_agrees() -> None:
    assert wrong(GOOD) == []
    assert wrong([*GOOD, finding(3, "after", 3), finding(5, "first-step")]) == []
    assert wrong([*GOOD, finding(6, "every-step", 1, 1)], "fp16") == []


@pytest.mark.parametrize(
    "findings",
    [
        GOOD[1:],
        GOOD[:-1],
        [*GOOD, finding(4, "every-step", 1, 1)],
        [*GOOD, finding(3, "every-step", 1, 1)],
        [*GOOD, finding(3, "set-up")],
        [*GOOD[:-1], finding(3, "some-steps", 1, 4)],
        [*GOOD, finding(6, "every-step", 1, 1)],
        [*GOOD, finding(1, "set-up", file="other.py")],
    ],
    ids=[
        "missing",
        "missing-some",
        "false",
        "too-many",
        "wrong-when",
        "wrong-rhythm",
        "other-variant",
        "elsewhere",
    ],
)
def test_a_report_that_disagrees(findings: list[dict[str, Any]]) -> None:
    assert len(wrong(findings)) == 1


def test_about_is_within_a_half() -> None:
    (about,) = clauses("# waits: about 3 every 5 steps")
    assert about.met_by([finding(1, "some-steps", 3.4, 5)])
    assert not about.met_by([finding(1, "some-steps", 3.6, 5)])
    assert not about.met_by([finding(1, "some-steps", 3, 4)])


def test_a_phase_is_named() -> None:
    (each,) = clauses("# waits: 64 each rollout")
    phase_finding = finding(1, "phase", 64)
    phase_finding["frequency"]["phase"] = "rollout"
    assert each.met_by([phase_finding])
    assert not each.met_by([finding(1, "phase", 64)])
    phase_finding["frequency"]["phase"] = "checkpoint"
    assert not each.met_by([phase_finding])


def test_a_comment_that_says_nothing_is_refused() -> None:
    assert clauses("# just a comment") == []
    with pytest.raises(ValueError, match="not an expectation: 'sometimes'"):
        clauses("# waits: sometimes")
