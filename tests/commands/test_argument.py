"""How ``--find`` is read, and how a script is given the argument."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.commands._argument import ArgumentRange, parse
from gapless.commands._argument import with_argument as with_value
from gapless.errors import UsageError

NAMES = st.from_regex(r"-{0,2}[a-z][a-z0-9_.-]{0,12}=?", fullmatch=True)


@given(NAMES, st.integers(0, 9999), st.integers(0, 9999), st.integers(1, 99))
def test_written_arguments_are_read(name: str, least: int, more: int, by: int) -> None:
    most = least + more
    assert parse(f"{name}:{least}..{most}") == ArgumentRange(name, least, most)
    assert parse(f"{name}:{least}..{most}:{by}") == ArgumentRange(name, least, most, by)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size", "expected an argument and its range: write --find batch_size:8..256"),
        ("batch_size:8", "expected an argument and its range"),
        ("batch_size:8-256", "expected an argument and its range"),
        (":8..256", "expected an argument and its range"),
        ("batch_size:-8..256", "expected an argument and its range"),
        ("batch size:8..256", "'batch size' is not the name of an argument"),
        ("batch_size:256..8", "256..8 is empty: put the smaller value first"),
        ("batch_size:8..256:0", "the step 0 must be at least 1"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        bounds = parse(text)
    except UsageError:
        return
    assert 0 <= bounds.least <= bounds.most


@pytest.mark.parametrize(
    ("words", "name", "source", "value"),
    [
        (["--batch-size", "8"], "batch_size", "", ["--batch-size", "64"]),
        (["--batch_size", "8", "-v"], "batch-size", "", ["--batch_size", "64", "-v"]),
        (["--batch_size=8", "-v"], "batch_size", "", ["--batch_size=64", "-v"]),
        (["-b", "8"], "-b", "", ["-b", "64"]),
        (["data.batch_size=8"], "data.batch_size", "", ["data.batch_size=64"]),
        (["+data.batch_size=8"], "data.batch_size", "", ["+data.batch_size=64"]),
        (["--bs", "4", "--bs", "8"], "bs", "", ["--bs", "4", "--bs", "64"]),
        ([], "batch_size", "add_argument('--batch-size')", ["--batch-size=64"]),
        ([], "b", "add_argument('-b', '--batch')", ["-b", "64"]),
        (
            ["config.py"],
            "batch_size",
            "exec(open('configurator.py').read())",
            ["config.py", "--batch_size=64"],
        ),
        ([], "batch_size", "@hydra.main(config_path='conf')", ["batch_size=64"]),
        ([], "--bs", "", ["--bs=64"]),
        ([], "-b", "", ["-b", "64"]),
        ([], "train.batch=", "", ["train.batch=64"]),
    ],
)
def test_the_argument_is_given_in_the_form_the_script_takes(words, name, source, value) -> None:
    assert with_value(words, name, 64, source) == value


@given(st.sampled_from(["--batch-size", "--batch_size"]), st.integers(0, 9999), st.booleans(), st.booleans())
def test_argparse_reads_what_is_given(option: str, value: int, is_there: bool, joined: bool) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(option, dest="size", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    before = ([f"{option}=3"] if joined else [option, "3"]) if is_there else []
    source = f"parser.add_argument({option!r}, type=int)"
    words = with_value(["--epochs", "2", *before], "batch_size", value, source)
    assert vars(parser.parse_args(words)) == {"size": value, "epochs": 2}
