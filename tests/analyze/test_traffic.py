"""What a rank sends and receives per step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programmes import A100

from gapless.analyze.estimate.collective_times import ring_bytes
from gapless.analyze.estimate.traffic import communication_buffers
from gapless.analyze.session_report import report
from gapless.model import Environment, Session, SourceLine, StepMark
from gapless.model.programme import Entry, Programme, Segment
from gapless.render import renderer
from gapless.render._style import Style

LINE = SourceLine("train.py", 7, code="loss.backward()")


def ring(ranks: int, part: int, rounds: int) -> int:
    """Bytes that each rank sends where every round passes one part on to the next."""
    return sum(part for _ in range(rounds * (ranks - 1)))


@given(st.integers(2, 64), st.integers(1, 1000))
def test_bytes_are_those_of_rings(ranks: int, part: int) -> None:
    """A ring of n ranks passes n - 1 parts on to gather, and as many to reduce."""
    whole = ranks * part
    for name, brought, has, rounds in (
        ("all_gather", part, whole, 1),
        ("reduce_scatter", whole, part, 1),
        ("all_reduce", whole, whole, 2),
        ("all_to_all", whole, whole, 1),
    ):
        entry = Entry(kind="collective", name=name, ranks=ranks, reads=brought, writes=has)
        expected = ring(ranks, part, rounds)
        assert ring_bytes(entry) == pytest.approx((expected, expected)), name


def test_one_alone_sends_to_one() -> None:
    assert ring_bytes(Entry(kind="collective", name="send", ranks=8, reads=5)) == (5, 0)
    assert ring_bytes(Entry(kind="collective", name="recv", ranks=8, writes=5)) == (0, 5)
    assert ring_bytes(Entry(kind="collective", name="barrier", ranks=8)) == (0, 0)


def session(steps: int = 8) -> Session:
    reduce = Entry(
        kind="collective", name="all_reduce", ranks=4, group="all 4 ranks", reads=4_000, writes=4_000,
        backward=True, line=LINE,
    )  # fmt: skip
    gather = Entry(kind="collective", name="all_gather", ranks=2, group="tp: 2 ranks", reads=50, writes=100)
    work = Entry(name="aten::mm", dtype="float32", inputs=((8, 8), (8, 8)), reads=512, writes=256)
    return Session(
        environment=Environment(emulated=True, world_size=4, rank=1, device="NVIDIA A100"),
        marks=tuple(
            StepMark(kind="optimizer", tick=n, time=float(n), name="SGD.step#0") for n in range(steps)
        ),
        programme=Programme(
            gpu=A100,
            entries=(work, reduce, gather),
            bodies=((0, 1, 1, 0), (0, 1, 1, 2)),
            segments=tuple(Segment(tick=n, body=n % 2) for n in range(steps)),
        ),
    )


def test_a_report_has_a_table_of_them() -> None:
    document = report(session())
    first, second = document.traffic
    assert (first.kind, first.times, first.sent, first.received) == ("all_reduce", 2, 12_000, 12_000)
    assert (second.kind, second.times, second.sent) == ("all_gather", 0.5, 25)
    (table,) = [candidate for candidate in document.tables if "sends" in candidate.title]
    assert table.title == "Rank 1 of 4 sends 12 kB per step and receives 12 kB"
    assert table.rows[0].cells == ("all_reduce (backward)", "all 4 ranks", "2", "12 kB", "12 kB", LINE)
    assert table.rows[1].cells[2] == "1 in 2"
    text = renderer("text")(document, Style(width=100))
    assert "all_gather" in text
    assert "train.py:7" in text


def test_without_collectives_there_is_none() -> None:
    alone = session()
    programme = Programme(
        entries=alone.programme.entries[:1], bodies=((0,),), segments=alone.programme.segments
    )
    assert report(Session(marks=alone.marks, programme=programme)).traffic == ()


@given(st.lists(st.sampled_from(["all_reduce", "all_to_all", "send", "recv", "host", "alone"]), max_size=6))
def test_nccl_takes_memory_for_each_group_that_meets_on_the_gpu(kinds: list[str]) -> None:
    entries = [
        Entry(
            kind="collective",
            name=kind if kind in ("all_to_all", "send", "recv") else "all_reduce",
            ranks=1 if kind == "alone" else 4,
            group=f"rank {at}" if kind in ("send", "recv") else f"{kind}: 4 ranks",
            detail="host" if kind == "host" else "",
        )
        for at, kind in enumerate(kinds)
    ]
    reserved = communication_buffers(Session(programme=Programme(entries=tuple(entries))))
    groups = {"pairs" if kind in ("send", "recv") else kind for kind in kinds} - {"host", "alone"}
    if not groups:
        assert reserved is None
        return
    assert reserved is not None
    assert reserved.groups == len(groups)
    single = communication_buffers(
        Session(programme=Programme(entries=(Entry(kind="collective", name="all_reduce", ranks=2),)))
    )
    assert single is not None
    assert 0 < single.least < single.most
    assert reserved.least == len(groups) * single.least
    assert (reserved.most > len(groups) * single.most) == ("all_to_all" in groups)


def test_without_a_programme_nothing_is_known_of_nccl() -> None:
    assert communication_buffers(Session()) is None
