"""Files that earlier versions saved: they are read today, and today's would be by a reader that knows less.

Each file in `saved` was written by the first version that could, and stays as it is for ever: where the
format changes its meaning, a file of the new version comes beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gapless.commands import main
from gapless.errors import UnreadableInput
from gapless.model import loading, memory, profile, session
from gapless.render import _schema

SAVED = Path(__file__).parent / "saved"
READERS: dict[str, Callable[[bytes], Any]] = {
    "session": session.decode,
    "profile": profile.decode,
    "memory": memory.decode,
    "loader": loading.decode,
}
COMMANDS = {"session": "show", "profile": "show", "memory": "memory", "loader": "loader"}
TOLD = {
    "session": ("3 syncs in every step", "GAP112", "train.py:16"),
    "profile": ("Your GPU idles", "3 steps"),
    "memory": ("At most 20 MiB reserved", "train.py:12"),
    "loader": ("A batch takes 196 µs to make", "num_workers=0"),
}


def data(name: str) -> bytes:
    return (SAVED / f"{name}.json").read_bytes()


def with_new_fields(value: Any) -> Any:
    """`value` with a field in every object that nobody knows."""
    if isinstance(value, dict):
        return {
            "of_a_later_version": [{"x": 1}],
            **{key: with_new_fields(item) for key, item in value.items()},
        }
    return [with_new_fields(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", READERS)
def test_what_earlier_versions_saved_is_reported(name, capsys):
    assert main([COMMANDS[name], str(SAVED / f"{name}.json")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [words for words in TOLD[name] if words not in out] == []


def test_a_loaders_report_in_json_is_read_as_what_was_saved_is(tmp_path, capsys):
    saved, written = str(SAVED / "loader.json"), tmp_path / "report.json"
    assert main(["loader", "-f", "json", saved]) == 0
    written.write_text(capsys.readouterr().out)
    said = []
    for path in (saved, str(written)):
        assert main(["loader", "--step-ms", "5", path]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    written.write_text('{"format": "gapless-report", "version": 2}')
    assert main(["loader", str(written)]) == 3
    assert "is a report, but not of a loader" in capsys.readouterr().err


@pytest.mark.parametrize("name", READERS)
def test_fields_of_later_versions_are_passed_over(name):
    fields = json.loads(data(name))
    added = with_new_fields(fields)
    if name in ("memory", "loader"):  # tables whose keys are names that the file itself gives
        added = {"of_a_later_version": 1, **fields}
    assert READERS[name](json.dumps(added).encode()) == READERS[name](data(name))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("version", [0, 2, -1])
def test_other_versions_are_refused_in_one_line(name, version):
    document = {**json.loads(data(name)), "version": version}
    with pytest.raises(UnreadableInput, match=r"version -?\d.*upgrade Gapless") as raised:
        READERS[name](json.dumps(document).encode())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [name for name in READERS if name in _schema.KINDS])
def test_earlier_documents_fit_the_schema_of_today(name):
    validator = jsonschema.Draft202012Validator(_schema.schema(name))
    document = json.loads(data(name))
    assert [error.message for error in validator.iter_errors(document)] == []
    assert list(validator.iter_errors({**document, "version": "1"}))  # and it is no schema that all would fit
