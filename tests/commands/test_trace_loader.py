"""`gapless trace --loader`: a profile's waits for input, and the loader measured."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from loading.test_cli import saved

from gapless.commands import main
from gapless.model import Session
from gapless.model.estimate import Range
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import load
from gapless.model.session import save as save_session

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
STARVED = "kineto-resnet50_num_workers_0-worker0.1623143089861-9b36.json.gz"


@pytest.fixture
def starved() -> Path:
    path = TRACES / STARVED
    if not path.exists():
        pytest.skip("the traces are not here")
    return path


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["trace", "-q", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def finding_of(out: str) -> dict:
    (finding,) = [finding for finding in json.loads(out)["findings"] if finding["code"] == "GAP301"]
    return finding


def test_a_real_profile_and_a_measurement_like_it(capsys, starved, tmp_path):
    """Batches of 69 ms without workers, as in this profile: one worker keeps up with the rest of its step."""
    plain = finding_of(run(capsys, "-f", "json", starved)[1])
    status, out, _ = run(capsys, "-f", "json", "--loader", saved(tmp_path / "loader.json"), starved)
    finding = finding_of(out)
    assert status == 0
    assert finding["evidence"][: len(plain["evidence"])] == plain["evidence"]
    cost, predicted = finding["evidence"][len(plain["evidence"]) :]
    assert cost == "a batch takes 69 ms to make, 58 ms CPU time and 11 ms waiting"
    assert predicted.startswith("predicted for this profile's step of 108 ms without its input: 69 ms")
    assert finding["remedy"].startswith("`DataLoader(..., num_workers=1)`: predicted step 1")
    assert finding["remedy"].endswith("instead of 178 ms")
    assert (finding["price"], finding["loss"]) == (plain["price"], plain["loss"])
    assert not [note for note in json.loads(out)["notes"] if "measurement" in note]


def test_a_measurement_of_another_loader_is_said_to_be_one(capsys, starved, tmp_path):
    _, out, _ = run(capsys, "-f", "json", "--loader", saved(tmp_path / "loader.json", 5, 1), starved)
    assert "was it the same loader, on the same machine?" in json.loads(out)["notes"][-1]


def test_a_measurement_in_a_session(capsys, starved, tmp_path):
    document = load(saved(tmp_path / "loader.json"))
    fast = msgspec.structs.replace(document, dataset="Other")
    uses = (LoaderUse(diagnosis=fast), LoaderUse(diagnosis=document, late=Range(1, 2, 3)))
    save_session(Session(loaders=uses), tmp_path / "run.gapless.json")
    by_session = run(capsys, "-f", "json", "--loader", tmp_path / "run.gapless.json", starved)[1]
    by_itself = run(capsys, "-f", "json", "--loader", tmp_path / "loader.json", starved)[1]
    assert finding_of(by_session) == finding_of(by_itself)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is not a saved loader measurement: gapless loader -o loader.json train.py:make_loader"),
        ("", "is not a saved loader measurement"),
        ('{"format": "gapless-session", "version": 1, "session": {}}', "holds no loader measurement"),
        ('{"format": "gapless-loader", "version": 99}', "is a diagnosis of version 99"),
    ],
)
def test_other_files_are_no_measurement(capsys, tmp_path, text, said):
    path = tmp_path / "other.json"
    path.write_text(text)
    status, out, err = run(capsys, "--loader", path, "trace.json")
    assert (status, out, len(err.splitlines())) == (3, "", 1)
    assert said in err


def test_no_such_file(capsys):
    assert run(capsys, "--loader", "nowhere.json", "trace.json")[2].startswith("gapless: cannot read nowhere")
