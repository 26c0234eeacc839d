"""The schemas, and documents that must fit them."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from tracing import training

import gapless
from gapless.analyze.profile.profile import profile
from gapless.analyze.profile.report import report as explain
from gapless.commands import main
from gapless.model.profile import encode as encode_profiles
from gapless.model.session import encode as encode_session
from gapless.render import Style, _schema, renderer

STYLE = Style()


@pytest.fixture(scope="module")
def session():
    with gapless.emulate() as seen:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(4):
            weight.sum().backward()
            optimizer.step()
            weight[weight > 0].sum().item()
    return seen.session


def fits(name: str, document: str | bytes) -> None:
    jsonschema.Draft202012Validator(_schema.schema(name)).validate(json.loads(document))


@pytest.mark.parametrize("name", _schema.KINDS)
def test_each_is_a_schema_that_refuses_other_documents(name: str) -> None:
    schema = _schema.schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    for other in ({}, {"format": "else", "version": 1}, []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema)


def test_reports_fit(session) -> None:
    fits("report", renderer("json")(gapless.report(session), STYLE))
    fits("report", renderer("json")(explain([profile(training().timeline())]), STYLE))


def test_saved_sessions_and_profiles_fit(session) -> None:
    fits("session", encode_session(session))
    fits("profile", encode_profiles([profile(training().timeline())]))


def test_a_field_of_another_type_does_not_fit(session) -> None:
    document = json.loads(renderer("json")(gapless.report(session), STYLE))
    document["findings"][0]["frequency"]["waits"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        fits("report", json.dumps(document))


def test_the_command_lists_prints_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("report ")
    assert main(["schema", "report"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(_schema.schema("report")))
    assert main(["schema", "reports"]) == 2
    assert "there are report, comparison" in capsys.readouterr().err
