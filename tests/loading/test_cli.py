"""``gapless loader`` as a user meets it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gapless import loading
from gapless.commands import main
from gapless.commands.loader import seconds
from gapless.errors import UsageError
from gapless.loading import correctness, measure  # noqa: F401 - before a script has its own sys.modules
from gapless.loading.forked import can_fork
from gapless.model.loading import (
    Demand,
    Diagnosis,
    Doubt,
    Fetch,
    Machine,
    Prediction,
    Seen,
    Setting,
    Transfer,
    load,
    save,
)

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes cannot be copied here")
MS = 1_000_000
SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

WORDS = "a photo " + "is read"

class Photos(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        print(WORDS)
        return torch.full((3, 8, 8), float(index)), index

class Lines(IterableDataset):
    def __iter__(self):
        yield from (torch.full((3,), float(number)) for number in range(40))

class Broken(Photos):
    def __getitem__(self, index):
        raise OSError("no such photo")

photos = Photos()

def make_loader():
    return DataLoader(Photos(), batch_size=4)

def make_stream():
    return DataLoader(Lines(), batch_size=4, num_workers=2)

def make_both():
    return DataLoader(photos, batch_size=2), DataLoader(photos, batch_size=8)

def make_broken():
    return DataLoader(Broken(), batch_size=4)

def make_of(root):
    return DataLoader(root)

def fails():
    raise KeyError("root")

if __name__ == "__main__":
    raise SystemExit("it trains")
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "photos_script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    return path


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["loader", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def saved(path: Path, cpu: float = 58, wait: float = 11) -> Path:
    """A measurement as it is saved: batches of so many milliseconds on eight cores."""
    save(
        Diagnosis(
            sentence="saved",
            dataset="Photos",
            length=500,
            setting=Setting(),
            machine=Machine(allowed=8, start="fork"),
            fetch=Fetch(
                items=80,
                item=8 * MS,
                item_cpu=cpu * MS / 8,
                item_wait=wait * MS / 8,
                batch_size=8,
                batch_bytes=3_000_000,
                tensors=2,
                batches=((int(cpu * MS), int(wait * MS)),) * 9,
            ),
            transfer=Transfer(batches=9, receive=0.5 * MS, first=90 * MS, private=12_000_000),
        ),
        path,
    )
    return path


def test_a_saved_measurement_with_another_step(capsys, tmp_path):
    path = saved(tmp_path / "loader.json")
    status, out, err = run(capsys, path, "--step-ms", 108, "--step-cpu", 0)
    assert (status, err) == (0, "")
    assert out.startswith("Your GPU would wait 39 % of each 177 ms step for data.")
    text = " ".join(out.split())
    assert "Why: A batch takes 69 ms to make, 58 ms CPU time and 11 ms waiting." in text
    assert "1 num_workers=1 the DataLoader 177 → 108 ms" in text
    assert "`DataLoader(..., num_workers=1)`" in text
    assert max(map(len, out.splitlines())) <= 80
    _, out, _ = run(capsys, path, "--step-ms", 24, "--step-cpu", 0)
    assert "num_workers=3)" in out
    assert run(capsys, path)[1].startswith("Saved.\n")


def test_json_and_what_is_saved(capsys, tmp_path):
    path = saved(tmp_path / "loader.json")
    words = (path, "--step-ms", 108, "-f", "json", "-o", tmp_path / "other.json")
    status, out, _ = run(capsys, *words)
    document = json.loads(out)
    assert (status, document["format"], document["kind"]) == (0, "gapless-report", "loader")
    assert document["loader"]["recommended"]["num_workers"] == 1
    assert load(tmp_path / "other.json").demand == Demand(step=108 * MS, source="given")


def test_a_loader_is_measured(capfd, script, tmp_path):
    kept = tmp_path / "kept.json"
    words = ["photos_script.py:make_loader", "--step-ms", "4", "--step-cpu", "0.1", "--budget", "700ms"]
    status = main(["loader", *words, "-o", str(kept)])
    out, _ = capfd.readouterr()
    assert status == 0
    assert "Photos · map-style · 100 batches per epoch · 4 items per batch" in out
    assert "a photo is read" not in out
    assert "Run for real" in out or "was not run" in out  # by how busy this machine is
    assert max(map(len, out.splitlines())) <= 80
    loaded = load(kept)
    assert loaded.fetch.batch_size == 4
    assert loaded.fetched is not None
    assert (Path(loaded.fetched.file).name, loaded.fetched.line) == ("photos_script.py", 11)


def test_mistakes_are_reported_and_can_fail_the_run(capfd, script, tmp_path):
    words = ["photos_script.py:make_stream", "--budget", "500ms", "--ranks", "2", "--fail-on", "GAP312"]
    assert main(["loader", *words, "-o", "kept.json"]) == 1
    out, err = capfd.readouterr()
    assert err.splitlines()[-1] == "gapless: GAP312 (--fail-on)"
    rows = [row.strip() for row in out.splitlines()]
    # Wrong results come before everything that is said of times, or of why nothing is.
    assert " ".join(out.split()).startswith(
        "The loader does not yield what it should: items-repeated-by-workers (GAP311), "
        "items-repeated-by-ranks (GAP312). "
    )
    assert "GAP311 items-repeated-by-workers" in rows
    assert "photos_script.py:16 in Lines.__iter__" in rows
    assert "│ def __iter__(self):" in rows
    assert "seen    each of 2 workers yields all 40 items, so an epoch has 80" in rows
    assert "GAP312 items-repeated-by-ranks" in rows
    kept = load("kept.json").correctness
    assert kept is not None
    assert (kept.codes, kept.ranks) == (("GAP311", "GAP312"), 2)
    # What was saved is found again, and the gate closes for it, too.
    assert main(["loader", "kept.json", "--fail-on", "GAP31", "-f", "json"]) == 1
    assert json.loads(capfd.readouterr().out)["loader"]["correctness"]["ranks"] == 2


@pytest.mark.parametrize("part", ["items", "mistakes"])
def test_ctrl_c_tells_what_was_found(capfd, monkeypatch, script, part):
    def diagnose(*words, **named):
        measured_part = "" if part == "mistakes" else part
        return Diagnosis(sentence="a batch takes 25 ms to make", interrupted=measured_part, doubt=None)

    def verify(*words, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "diagnose", diagnose)
    monkeypatch.setattr(loading, "verify", verify)
    assert main(["loader", "photos_script.py:make_loader", "--budget", "500ms", "-f", "json"]) == 130
    saved = json.loads(capfd.readouterr().out)["loader"]
    assert (saved["sentence"], saved["interrupted"]) == ("a batch takes 25 ms to make", part)


def test_ctrl_c_before_anything_was_found_is_said(capfd, monkeypatch, script):
    def diagnose(*words, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "diagnose", diagnose)
    assert main(["loader", "photos_script.py:make_loader"]) == 130
    assert capfd.readouterr().err == "gapless: interrupted before the first item was made: nothing measured\n"


@pytest.mark.parametrize(
    ("words", "checked"),
    [([], True), (["--no-check-advice"], False), (["--no-verify"], False), (["--verify"], True)],
)
def test_whether_the_advice_is_run(capfd, monkeypatch, script, words, checked):
    checks = []

    def diagnose(*words, check_advice, **named):
        checks.append(check_advice)
        return Diagnosis(sentence="a batch takes 25 ms to make")

    monkeypatch.setattr(measure, "diagnose", diagnose)
    assert main(["loader", "photos_script.py:make_loader", "--no-mistakes", *words]) == 0
    assert checks == [checked]


def test_the_run_of_the_advice_has_its_name_in_what_was_saved_before(tmp_path):
    ran = Seen(setting=Setting(workers=2), step=20 * MS)
    save(Diagnosis(seen_advised=ran), tmp_path / "loader.json")
    assert json.loads((tmp_path / "loader.json").read_text())["diagnosis"]["verified"]["step"] == 20 * MS
    assert load(tmp_path / "loader.json").seen_advised == ran


def test_a_busy_machine_is_the_first_line_and_fails_no_gate(capsys, tmp_path):
    path, message = (
        tmp_path / "busy.json",
        "cannot be measured now: other programs use 1.8 of 2 cores. (Under.)",
    )
    starved = Prediction(setting=Setting(), step=60 * MS, wait=40 * MS)
    doubt = Doubt(kind="busy", others=1.8)
    demand = Demand(step=20 * MS)
    save(Diagnosis(sentence=message, doubt=doubt, now=starved, advised=starved, demand=demand), path)
    status, out, _ = run(capsys, path, "--fail-on", "GAP301")
    assert status == 0
    rows = out.splitlines()
    assert rows[0] == "Cannot be measured now: other programs use 1.8 of 2 cores. (Under.)"
    assert "DataLoader(" not in out


def test_reasons_follow_the_first_line(capsys, tmp_path):
    path = tmp_path / "refuted.json"
    doubt = Doubt(kind="refuted", reasons=("the processor throttled 3 times because of heat",))
    save(Diagnosis(sentence="no step time can be given", doubt=doubt), path)
    _, out, _ = run(capsys, path)
    assert out.splitlines()[:2] == [
        "No step time can be given.",
        "Why: the processor throttled 3 times because of heat.",
    ]


def test_mistakes_need_not_be_looked_for(capfd, script):
    words = ["photos_script.py:make_stream", "--budget", "500ms", "--no-mistakes", "--fail-on", "GAP31"]
    assert main(["loader", *words]) == 0
    assert "GAP311" not in capfd.readouterr().out


@pytest.mark.parametrize(("step", "status"), [(108, 1), (5000, 0)])
def test_a_step_that_waits_can_fail_it(capsys, tmp_path, step, status):
    path = saved(tmp_path / "loader.json")
    status_found, _, err = run(capsys, path, "--step-ms", step, "--fail-on", "GAP301")
    assert (status_found, err) == (status, "gapless: GAP301 (--fail-on)\n" * status)


@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("photos_script.py:photos", "this is a dataset (Photos): it is measured in batches of 32"),
        ("photos_script:make_both", "returns 2 objects: this is number 1"),
    ],
)
def test_what_else_can_be_named(capsys, script, target, note):
    status, out, _ = run(capsys, target, "--budget", "0.4", "-f", "json")
    assert status == 0
    assert note in json.loads(out)["loader"]["notes"][0]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["photos_script.py"], 2, "name the function that creates the loader: train.py:make_loader"),
        (["nowhere.py:make"], 2, "no such file: nowhere.py"),
        (["nowhere.there:make"], 2, "no module named nowhere"),
        (["photos_script.py:make_loaders"], 2, "has no make_loaders (did you mean make_loader?)"),
        (["photos_script.py:make_of"], 2, "needs arguments (root): name a function without arguments"),
        (["photos_script.py:__name__"], 2, "is a str, neither a loader nor a function that returns one"),
        (["photos_script.py:Photos.__len__"], 2, "needs arguments (self)"),
        (
            ["photos_script.py:fails"],
            3,
            "photos_script.py:fails fails at photos_script.py:41: KeyError: 'root'",
        ),
        (["photos_script.py:make_broken"], 3, "at photos_script.py:21: OSError: no such photo"),
        (
            ["photos_script.py:make_loader", "--budget", "soon"],
            2,
            "'soon' is not a time: write 20s, 500ms or 2m",
        ),
        (["x.json", "--step-ms", "3", "--session", "y"], 2, "give only one of them"),
        (["x.json"], 3, "cannot read x.json"),
        (["photos_script.py:make_loader", "--fail-on", "GAP9"], 2, "no rule code starts with 'GAP9'"),
        (["photos_script.py:make_loader", "--profile", "x.json"], 3, "cannot read x.json"),
        (["photos_script.py:make_loader", "--session", "photos_script.py"], 3, "is not a saved session"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(capsys, script, words, status, said):
    status_found, out, err = run(capsys, *words)
    assert (status_found, out) == (status, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_script_that_fails_when_it_is_imported(capsys, script, tmp_path):
    (tmp_path / "bad_script.py").write_text("import os\n\nraise ValueError('not here')\n")
    status, _, err = run(capsys, "bad_script.py:make")
    assert (status, err) == (
        3,
        "gapless: importing bad_script.py fails at bad_script.py:3: ValueError: not here\n",
    )


@pytest.mark.parametrize("words", [["--check-advice"], ["--verify"], ["--ranks", 2]])
def test_a_saved_measurement_cannot_be_run_again(capsys, tmp_path, words):
    path = saved(tmp_path / "loader.json")
    status, _, err = run(capsys, path, "--step-ms", 3, *words)
    assert (status, "a saved diagnosis does not contain one" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "value"), [("20", 20), ("20s", 20), ("500ms", 0.5), ("1.5m", 90), ("2 min", 120)]
)
def test_times(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "-3", "3 hours", "s"])
def test_malformed_times_are_refused(text):
    with pytest.raises(UsageError, match="is not a time"):
        seconds(text)
