"""The report as SARIF: the parts that the standard and code scanning services ask for."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given, settings
from render.reports import hostile, names, of_profile
from sessions import example

from gapless.model import Ending, Finding, Frequency, Report, SourceLine, Verdict
from gapless.model.finding import Spot
from gapless.render import Style, renderer, together
from gapless.render.sarif import FINGERPRINT, fingerprints
from gapless.rules import rule

STYLE = Style(folder="/work")
LEVELS = {"none", "note", "warning", "error"}


def sarif(report: Report, style: Style = STYLE) -> dict[str, Any]:
    return json.loads(renderer("sarif")(report, style))


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in strings(item)]


def assert_sound(log: dict[str, Any]) -> None:
    """What the schema of SARIF 2.1.0 requires of the parts that are used."""
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    for run in log["runs"]:
        assert set(run) <= {
            "tool",
            "automationDetails",
            "originalUriBaseIds",
            "invocations",
            "results",
            "columnKind",
            "properties",
        }
        rules = run["tool"]["driver"]["rules"]
        assert run["tool"]["driver"]["name"] == "Gapless"
        assert len({described_rule["id"] for described_rule in rules}) == len(rules)
        for driver_rule in rules:
            for text in ("shortDescription", "fullDescription", "help"):
                assert driver_rule[text]["text"]
            assert driver_rule["help"]["markdown"]
            assert driver_rule["defaultConfiguration"]["level"] in LEVELS
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)
            for notification in invocation["toolExecutionNotifications"]:
                assert isinstance(notification["message"]["text"], str)
        for result in run["results"]:
            assert_result(result, rules, set(run["originalUriBaseIds"]))


def assert_result(result: dict[str, Any], rules: list[dict[str, Any]], bases: set[str]) -> None:
    assert result["message"]["text"]
    assert result["level"] in LEVELS
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["partialFingerprints"][FINGERPRINT]
    assert len(result["locations"]) == 1  # a service refuses a result without a place
    frames = [frame["location"] for stack in result.get("stacks", ()) for frame in stack["frames"]]
    for location in [*result["locations"], *result.get("relatedLocations", ()), *frames]:
        artifact = location["physicalLocation"]["artifactLocation"]
        assert not unquote(artifact["uri"]).startswith("/")
        assert artifact["uri"].isascii()
        assert " " not in artifact["uri"]
        assert artifact.get("uriBaseId", "%SRCROOT%") in bases
        assert location["physicalLocation"]["region"]["startLine"] >= 1


def test_a_check():
    log = sarif(example())
    assert_sound(log)
    run = log["runs"][0]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("GAP141", "warning"),
        ("GAP110", "warning"),
        ("GAP101", "warning"),
        ("GAP101", "note"),
        ("GAP120", "note"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 50, "snippet": {"text": "loss_metric.update(loss)"}}
    assert run["invocations"][0]["executionSuccessful"] is True
    assert run["results"][0]["message"]["text"].endswith('Instead: `nan_strategy="disable"`.')


def test_rules_are_explained_by_their_own_words():
    described = {rule["id"]: rule for rule in sarif(example())["runs"][0]["tool"]["driver"]["rules"]}
    assert set(described) == {"GAP101", "GAP110", "GAP120", "GAP141"}
    for code, described_rule in described.items():
        assert described_rule["name"] == rule(code).name
        assert described_rule["shortDescription"]["text"] == rule(code).summary()
        for title, text in rule(code).sections().items():
            assert f"## {title}\n\n{text}" in described_rule["help"]["markdown"]


def test_a_profile():
    log = sarif(of_profile())
    assert_sound(log)
    assert log["runs"][0]["results"]


def test_each_line_of_a_finding_that_one_change_mends_is_a_location():
    report = example()
    first = report.findings[0]
    at = [msgspec.structs.replace(first.line, line=line) for line in (50, 53, 61)]
    merged = msgspec.structs.replace(first, spots=tuple(Spot(line=line) for line in at))
    log = sarif(msgspec.structs.replace(report, findings=(merged, *report.findings[1:])))
    assert_sound(log)
    result, *further_results = log["runs"][0]["results"]
    places = [*result["locations"], *result["relatedLocations"]]
    assert [place["physicalLocation"]["region"]["startLine"] for place in places] == [50, 53, 61]
    assert [place["id"] for place in result["relatedLocations"]] == [1, 2]
    assert all("relatedLocations" not in further for further in further_results)


def test_two_reports_are_one_log():
    log = json.loads(together("sarif", [example(), of_profile()], STYLE))
    assert_sound(log)
    assert len({run["automationDetails"]["id"] for run in log["runs"]}) == 2


def test_a_failed_run_says_so():
    run = sarif(example(Ending(how="error", status=1, message="ValueError: no")))["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    texts = [
        notification["message"]["text"]
        for notification in run["invocations"][0]["toolExecutionNotifications"]
    ]
    assert "The script failed (ValueError: no): only what ran until then was checked" in texts


@settings(deadline=None, max_examples=40)
@given(names)
def test_hostile_names(name):
    text = renderer("sarif")(hostile(name), STYLE)
    text.encode()
    assert_sound(json.loads(text))


def test_no_path_of_the_machine_is_shown():
    def moved(finding: Finding) -> Finding:
        line = SourceLine("/home/alice/secret/train.py", 3, "f", "x.item()")
        return msgspec.structs.replace(finding, line=line)

    report = example()
    report = msgspec.structs.replace(
        report, script=("/home/alice/secret/train.py",), findings=tuple(map(moved, report.findings))
    )
    for form in ("sarif", "github", "markdown", "junit"):
        assert "alice" not in renderer(form)(report, STYLE)
        assert "alice" not in renderer(form)(report, Style(folder="/home/alice/secret"))
    assert not any("/venv/" in text for text in strings(sarif(report)))


def test_a_home_folder_in_a_message(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USERPROFILE", "/home/alice")
    report = example(Ending(how="error", status=1, message="OSError: '/home/alice/data/x.bin'"))
    for form in ("sarif", "github", "markdown", "junit"):
        text = renderer(form)(report, STYLE)
        assert "alice" not in text
        assert "data/x.bin" in text


def test_a_module():
    report = msgspec.structs.replace(example(), script=("-m", "package.train", "--epochs", "1"))
    assert sarif(report)["runs"][0]["automationDetails"]["id"] == "gapless/package.train/"


def finding_on(code: str, line: int, backward: bool = False) -> Finding:
    return Finding(
        code="GAP101",
        name="item-read",
        line=SourceLine("/work/train.py", line, "train", code),
        frequency=Frequency(when="every-step", waits=1, per_step=1),
        remedy="",
        backward=backward,
    )


def test_fingerprints_outlive_a_move_of_the_line():
    before = [
        finding_on("a.item()", 3),
        finding_on("b.item()", 9),
        finding_on("b.item()", 4),
        finding_on("b.item()", 4, True),
    ]
    after = [
        finding_on("b.item()", 44, True),
        finding_on("a.item()", 7),
        finding_on("b.item()", 12),
        finding_on("b.item()", 44),
    ]
    first, second = fingerprints(before, STYLE), fingerprints(after, STYLE)
    assert len(set(first)) == 4
    assert [first[3], first[0], first[2], first[1]] == second


def test_fingerprints_tell_files_and_code_apart():
    finding = finding_on("a.item()", 3)
    other = msgspec.structs.replace(finding, line=SourceLine("/work/other.py", 3, "train", "a.item()"))
    assert len(set(fingerprints([finding, other, finding_on("a.tolist()", 3)], STYLE))) == 3


def test_paths_start_at_the_root_of_the_repository(tmp_path):
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "training"
    folder.mkdir()
    finding = finding_on("a.item()", 3)
    absolute = msgspec.structs.replace(finding, line=SourceLine(f"{folder}/run it.py", 3, "f", "a"))
    relative = msgspec.structs.replace(
        finding, line=SourceLine("run it.py", 3, "f", "a")
    )  # as profiles have it
    report = Report(verdict=Verdict(sentence="1 wait"), findings=(absolute, relative))
    for result in sarif(report, Style(folder=str(folder)))["runs"][0]["results"]:
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri == "training/run%20it.py"


@pytest.mark.parametrize("unicode", [True, False])
def test_ascii(unicode):
    report = msgspec.structs.replace(example(), notes=("café",))
    text = renderer("sarif")(report, Style(unicode=unicode))
    assert text.isascii() is not unicode
    assert "café" in strings(json.loads(text))
