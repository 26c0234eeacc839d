"""The schemas, and documents that must fit them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from trace_builder import training

import gapless
from gapless.analyze import report
from gapless.analyze.profile.building import build_profile
from gapless.analyze.profile.profile_report import report_run as explain
from gapless.commands import main
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import Ending, Session
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis, Prediction, Setting
from gapless.model.loading import save as save_loader
from gapless.model.loading_mistakes import Mistake, Verification
from gapless.model.profile import encode as encode_profiles
from gapless.model.proof import CallCost, Proof
from gapless.model.session import encode as encode_session
from gapless.render import Style, _schema, renderer

STYLE = Style()


@pytest.fixture(scope="module")
def session():
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(8):
            weight.sum().backward()
            optimizer.step()
            weight[weight > 0].sum().item()
        return emulator.session(script=("train.py",), ending=Ending())


def assert_fits(name: str, document: str | bytes) -> None:
    jsonschema.Draft202012Validator(_schema.schema(name)).validate(json.loads(document))


@pytest.mark.parametrize("name", _schema.KINDS)
def test_each_is_a_schema_that_refuses_other_documents(name: str) -> None:
    schema = _schema.schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    for other in ({}, {"format": "else", "version": 1}, []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema)


def test_reports_fit(session) -> None:
    report = gapless.report(session)
    assert report.estimate is not None
    assert_fits("report", renderer("json")(report, STYLE))
    assert_fits("report", renderer("json")(explain([build_profile(training().timeline())]), STYLE))


SAVED = Path(__file__).parents[1] / "model" / "saved"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("comparison", ["compare", "profile.json", "profile.json"]),
        ("comparison", ["compare", "session.json", "session.json"]),
        ("profile", ["show", "profile.json"]),
        ("memory", ["memory", "--search", "memory.json"]),
        ("loader", ["loader", "loader.json"]),
    ],
)
def test_what_commands_write_fits(kind, words, capsys, monkeypatch) -> None:
    monkeypatch.chdir(SAVED)
    assert main([*words, "-f", "json"]) == 0
    written = capsys.readouterr().out
    assert json.loads(written)["kind"] == kind
    assert json.loads(written)[kind]
    assert_fits("report", written)


def test_a_proof_fits() -> None:
    cost = CallCost(waits=1.0, first=2, operators=3, peak=4, estimate=Range(1, 2, 3))
    proof = Proof(verdict="the same", same=True, before="a", after="b", cases=(), costs=(cost, cost))
    assert_fits("report", renderer("json")(report(proof), STYLE))


def test_saved_sessions_and_profiles_fit(session) -> None:
    assert_fits("session", encode_session(session))
    assert_fits("profile", encode_profiles([build_profile(training().timeline())]))


def test_loaders_fit(tmp_path) -> None:
    correctness = Verification(mistakes=(Mistake(code="GAP311", name="n", seen="s", remedy="r"),))
    diagnosis = Diagnosis(now=Prediction(setting=Setting(workers=2)), correctness=correctness)
    save_loader(diagnosis, tmp_path / "loader.json")
    assert_fits("loader", (tmp_path / "loader.json").read_bytes())
    assert_fits("report", renderer("json")(report(diagnosis), STYLE))
    assert_fits("session", encode_session(Session(loaders=(LoaderUse(diagnosis=diagnosis),))))


def test_a_field_of_another_type_does_not_fit(session) -> None:
    document = json.loads(renderer("json")(gapless.report(session), STYLE))
    document["findings"][0]["frequency"]["waits"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        assert_fits("report", json.dumps(document))


def test_the_command_lists_prints_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("report ")
    assert main(["schema", "report"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(_schema.schema("report")))
    assert main(["schema", "reports"]) == 2
    assert "there are report, loader" in capsys.readouterr().err
