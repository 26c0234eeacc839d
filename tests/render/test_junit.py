"""The report as JUnit XML, read by a parser."""

from __future__ import annotations

from xml.etree import ElementTree

from building import example
from hypothesis import given, settings
from render.reports import hostile, names, of_profile

from gapless.model import Ending, Report, Verdict
from gapless.render import Style, renderer, together

STYLE = Style(folder="/work")


def suite(report: Report, style: Style = STYLE) -> ElementTree.Element:
    return ElementTree.fromstring(renderer("junit")(report, style))[0]


def assert_counted(element: ElementTree.Element) -> None:
    assert int(element.get("tests")) == len(element.findall("testcase"))
    assert int(element.get("failures")) == len(element.findall("testcase/failure"))
    assert int(element.get("errors")) == len(element.findall("testcase/error"))


def test_a_case_for_each_finding():
    found = suite(example())
    assert_counted(found)
    cases = found.findall("testcase")
    assert [case.get("name").split(" at ")[0] for case in cases] == [
        "runs",
        "GAP141 torchmetrics-nan-check",
        "GAP110 nonzero",
        "GAP101 item-read",
        "GAP101 item-read",
        "GAP120 pageable-copy",
    ]
    # In evaluation and in set-up it is no failure.
    assert [case.find("failure") is not None for case in cases] == [False, True, True, True, False, False]
    assert (cases[1].get("file"), cases[1].get("line")) == ("train.py", "50")
    assert cases[1].find("failure").get("message") == "train.py:50: 2× in every step"
    assert "loss_metric.update(loss)" in cases[1].find("failure").text
    assert found.find("system-out").text.startswith("3 to 4 syncs in every step")


def test_no_findings_pass():
    found = suite(Report(verdict=Verdict(sentence="No waits"), script=("train.py",)))
    assert (found.get("tests"), found.get("failures"), found.get("errors")) == ("1", "0", "0")


def test_a_run_that_failed_is_an_error():
    suite_element = suite(example(Ending(how="error", status=1, message="ValueError: <no>")))
    assert_counted(suite_element)
    assert suite_element.find("testcase/error").get("message") == "ValueError: <no>"


def test_two_reports_are_one_document():
    root = ElementTree.fromstring(together("junit", [example(), of_profile()], STYLE))
    assert [one.tag for one in root] == ["testsuite", "testsuite"]
    for one in root:
        assert_counted(one)


@settings(deadline=None, max_examples=40)
@given(names)
def test_hostile_names(name):
    text = renderer("junit")(hostile(name), STYLE)
    found = ElementTree.fromstring(text.encode())[0]
    assert_counted(found)
    assert {part.tag for part in found.iter()} <= {
        "testsuite",
        "testcase",
        "failure",
        "error",
        "system-out",
    }


def test_ascii():
    text = renderer("junit")(example(), Style(unicode=False))
    assert text.isascii()
    assert "2× in every step" in ElementTree.fromstring(text)[0].find("testcase/failure").get("message")
