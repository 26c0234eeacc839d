"""How fast the host is: measured once, kept, never twice, and never believed where it cannot be."""

from __future__ import annotations

import json

import pytest

from gapless.capture import host_speed
from gapless.commands._host import HOST_FACTORS, parse_host_speed, resolve_host_speed
from gapless.errors import UsageError

pytest.importorskip("torch")
USUAL = host_speed.USUAL


def fails() -> tuple[float, float]:
    raise AssertionError("it was measured again")


def test_the_host_speed_is_measured_once_and_cached(tmp_path):
    file = tmp_path / "deep" / "host.json"
    first = host_speed.host_speed(lambda: (0.8 * USUAL, 1.0), file)
    assert (first.factor, first.measured, first.cpu) == (0.8, True, host_speed.processor())
    assert host_speed.host_speed(fails, file) == first
    (key,) = json.loads(file.read_text())
    assert "torch" in key
    assert "Python" in key


def test_what_a_busy_machine_gives_is_used_and_not_kept(tmp_path):
    file = tmp_path / "host.json"
    assert host_speed.host_speed(lambda: (2 * USUAL, 0.4), file).factor == 2
    assert not file.exists()


@pytest.mark.parametrize("speed", [0.0, 0.001, 1e6])
def test_what_no_cpu_is_is_not_believed(tmp_path, speed):
    assert host_speed.host_speed(lambda: (speed * USUAL, 1.0), tmp_path / "host.json") is None


DAMAGED = {
    "empty": "",
    "cut": "{",
    "list": "[1]",
    "text": '{"a": "b"}',
    "null": '{"a": null}',
    "zero byte": "\x00",
    "deep": "[" * 99_999,
    "huge number": '{"a": 1' + "0" * 400 + "}",
}


@pytest.mark.parametrize("kept", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_none_is_written_anew(tmp_path, kept):
    file = tmp_path / "host.json"
    file.write_text(kept)
    assert host_speed.host_speed(lambda: (USUAL, 1.0), file).factor == 1
    assert host_speed.host_speed(fails, file).factor == 1


def test_other_machines_in_the_file_stay(tmp_path):
    file = tmp_path / "host.json"
    file.write_text('{"another": 1.5}')
    host_speed.host_speed(lambda: (USUAL, 1.0), file)
    assert json.loads(file.read_text())["another"] == 1.5


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert host_speed.host_speed(lambda: (USUAL, 1.0), tmp_path / "file" / "host.json").factor == 1


def test_the_probe_is_a_training_step_that_leaves_chance_alone():
    import torch

    before = torch.random.get_rng_state()
    time, had = host_speed.time_step(host_speed.probe_step(), seconds=0.0)
    assert time > 0
    assert had > 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("text", "factor"), [("0.8", 0.8), ("fast", HOST_FACTORS["fast"]), ("slow", HOST_FACTORS["slow"])]
)
def test_what_the_user_says(text, factor):
    said = resolve_host_speed(text)
    assert (said.factor, said.measured) == (factor, False)


def test_a_usual_host_has_no_speed_of_its_own():
    assert resolve_host_speed("usual") is None


@pytest.mark.parametrize("text", ["", "quick", "0", "-1", "nan", "inf", "1e9"])
def test_what_says_nothing_is_refused(text):
    with pytest.raises(UsageError, match="--host"):
        parse_host_speed(text)
