"""What all findings of a function or a file cost together."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from programmes import add, read, send, session

from gapless.analyze import report
from gapless.model import Report, Session, Site, SourceLine
from gapless.model.estimate import PlaceSaving
from gapless.model.session import decode, encode
from gapless.model.wording import duration
from gapless.render import Style, renderer

PLACES = (
    ("/work/loss.py", "Loss.forward"),
    ("/work/loss.py", "Loss.forward"),
    ("/work/loss.py", "match"),
    ("/work/loss.py", "match"),
    ("/work/train.py", "<module>"),
    ("/work/train.py", "<module>"),
)


def placed(run: Session) -> Session:
    """`run` with its sites at `PLACES`."""

    def at(number: int, site: Site) -> Site:
        line = SourceLine(*PLACES[number][:1], 10 * (number + 1), PLACES[number][1], "x.item()")
        return msgspec.structs.replace(site, stack=(line,))

    return msgspec.structs.replace(run, sites=tuple(at(*each) for each in enumerate(run.sites)))


def report_of(*steps: list) -> Report:
    return report(placed(session(*steps)), by_line=True)


def places(result: Report) -> dict[str, PlaceSaving]:
    assert result.estimate is not None
    return {place.function or place.file: place for place in result.estimate.places}


STEP = [piece for site in range(6) for piece in (*[add(0.5)] * 10, read(site), *[add()] * 20)]


def test_a_file_costs_what_a_replay_without_all_of_it_saves():
    result = report_of(*[STEP] * 8)
    together = places(result)
    assert set(together) == {"/work/loss.py", "/work/train.py", "Loss.forward", "match"}
    assert together["/work/loss.py"].findings == 4
    without = [piece for piece in STEP if piece.kind != "wait" or piece.site > 3]
    rest = report_of(*[without] * 8).estimate
    # the copies and launches of the reads stay, some 20 µs for each
    expected = result.estimate.step.likely - rest.step.likely
    assert 0 <= expected - together["/work/loss.py"].saved.likely < 4 * 30_000


def test_consecutive_reads_of_a_function_cost_nothing_alone_and_much_together():
    result = report_of(*[[*[add(0.5)] * 10, read(0), read(1), *[add()] * 200]] * 8)
    (place,) = places(result).values()
    assert place.file == "/work/loss.py"
    assert place.findings == 2
    alone = [finding.price.alone for finding in result.findings]
    assert place.saved.likely > 5 * sum(alone)


pieces = st.one_of(
    st.sampled_from([add(), add(0.3), add(2.0)]),
    st.builds(read, st.integers(0, 5)),
    st.builds(send, st.just(5), st.integers(1, 1 << 22)),
)


@settings(deadline=None, max_examples=10)
@given(st.lists(pieces, max_size=25))
def test_a_function_costs_no_more_than_its_file_and_a_file_no_more_than_all(step):
    result = report_of(*[[add(), *step]] * 5)
    estimate = result.estimate
    together = places(result)
    for place in together.values():
        assert place.saved.least <= place.saved.likely <= place.saved.most
        assert 0 <= place.saved.likely <= estimate.saved.likely + 1
        if place.function and place.file in together:
            assert place.saved.likely <= together[place.file].saved.likely + 1
        members = [
            finding
            for finding in result.findings
            if finding.price is not None
            and finding.line.file == place.file
            and place.function in ("", finding.line.function)
        ]
        assert place.findings == len(members)
        assert all(finding.price.alone <= place.saved.likely + 1 for finding in members)


def test_every_format_says_the_same_and_a_saved_session_too():
    run = placed(session(*[STEP] * 8))
    result = report(run)
    assert report(decode(encode(run))) == result
    saved = places(result)["/work/loss.py"].saved
    first = json.loads(renderer("json")(result, Style()))["estimate"]["places"][0]
    assert first["file"] == "/work/loss.py"
    assert first["saved"] == {"least": saved.least, "likely": saved.likely, "most": saved.most}
    for name in ("text", "html"):
        document = renderer(name)(result, Style(unfold=True, width=200))
        assert "all of loss.py" in document
        assert duration(saved.likely) in document
    assert "all of loss.py" not in renderer("text")(result, Style(width=200))
