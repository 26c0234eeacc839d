"""The report as JUnit XML, read by a parser."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings
from render.reports import hostile, names, of_profile
from sessions import example

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
    element = suite(example())
    assert_counted(element)
    cases = element.findall("testcase")
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
    assert element.find("system-out").text.startswith("3 to 4 syncs in every step")


def test_no_findings_pass():
    cases = suite(Report(verdict=Verdict(sentence="No waits"), script=("train.py",)))
    assert (cases.get("tests"), cases.get("failures"), cases.get("errors")) == ("1", "0", "0")


def test_a_run_that_failed_is_an_error():
    suite_element = suite(example(Ending(how="error", status=1, message="ValueError: <no>")))
    assert_counted(suite_element)
    assert suite_element.find("testcase/error").get("message") == "ValueError: <no>"


def test_two_reports_are_one_document():
    root = ElementTree.fromstring(together("junit", [example(), of_profile()], STYLE))
    assert [element.tag for element in root] == ["testsuite", "testsuite"]
    for element in root:
        assert_counted(element)


@settings(deadline=None, max_examples=40)
@given(names)
def test_hostile_names(name):
    text = renderer("junit")(hostile(name), STYLE)
    parsed_suite = ElementTree.fromstring(text.encode())[0]
    assert_counted(parsed_suite)
    assert {part.tag for part in parsed_suite.iter()} <= {
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
