"""The parts commands are made of."""

from __future__ import annotations

import io

import click
import pytest

from gapless.commands._progress import Progress
from gapless.commands._ranks import here, path_for, rank, several
from gapless.commands._script import ScriptCommand
from gapless.model import Ending, Session


def parsed(*words: str) -> dict[str, object]:
    @click.command(cls=ScriptCommand)
    @click.option("-m", "--module")
    @click.option("-o", "--output")
    @click.option("-q", "--quiet", is_flag=True)
    @click.argument("script", nargs=-1, type=click.UNPROCESSED)
    def command(**values: object) -> dict[str, object]:
        return values

    values = command.main(list(words), standalone_mode=False)
    return {name: value for name, value in values.items() if value}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a.py", "-q", "--x"), {"script": ("a.py", "-q", "--x")}),
        (("-q", "a.py", "-o", "x"), {"quiet": True, "script": ("a.py", "-o", "x")}),
        (("-o", "x", "a.py", "--", "-q"), {"output": "x", "script": ("a.py", "--", "-q")}),
        (("-ox", "a.py"), {"output": "x", "script": ("a.py",)}),
        (("--output=x", "a.py"), {"output": "x", "script": ("a.py",)}),
        (("-o", "-m", "a.py"), {"output": "-m", "script": ("a.py",)}),
        (("--", "a.py", "-q"), {"script": ("a.py", "-q")}),
        (("--", "-odd.py"), {"script": ("-odd.py",)}),
        (("-m", "p.q", "-q", "--x"), {"module": "p.q", "script": ("-q", "--x")}),
        (("-mp.q", "-q"), {"module": "p.q", "script": ("-q",)}),
        (("-qm", "p.q", "-o", "x"), {"quiet": True, "module": "p.q", "script": ("-o", "x")}),
        (("-qmp.q", "-o"), {"quiet": True, "module": "p.q", "script": ("-o",)}),
        (("--module", "p", "--module", "q"), {"module": "p", "script": ("--module", "q")}),
        (("--module=p", "-q"), {"module": "p", "script": ("-q",)}),
        (("-m", "p", "--", "-q"), {"module": "p", "script": ("--", "-q")}),
        (("-q", "-m", "p"), {"quiet": True, "module": "p"}),
        ((), {}),
    ],
)
def test_options_end_where_the_script_begins(words, expected):
    assert parsed(*words) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 0),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"RANK": "1"}, 0),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0),
        ({"RANK": "x", "WORLD_SIZE": "2"}, 0),
        ({"WORLD_SIZE": "2"}, 0),
    ],
)
def test_rank(environment, expected):
    assert rank(environment) == expected


def test_several_and_here():
    assert not several({})
    assert several({"WORLD_SIZE": "2"})
    assert (here({}), here({"LOCAL_WORLD_SIZE": "4"}), here({"LOCAL_WORLD_SIZE": "x"})) == (1, 4, 1)


@pytest.mark.parametrize(
    ("path", "rank", "expected"),
    [
        ("run.gapless.json", 0, "run.gapless.json"),
        ("out/run.gapless.json", 3, "out/run.rank3.gapless.json"),
        ("run.json", 1, "run.rank1.json"),
        ("run", 1, "run.rank1"),
    ],
)
def test_each_rank_has_its_file(path, rank, expected):
    assert path_for(path, rank) == expected


def test_progress_speaks_at_most_every_ten_seconds():
    now = [0.0]
    stream = io.StringIO()
    progress = Progress(stream, 12, clock=lambda: now[0])
    progress.begin("train.py", "NVIDIA H100", 10)
    for step in range(1, 13):
        now[0] += 4
        progress.step(step)
    progress.end(Session(ending=Ending(how="enough-steps")), 12)
    assert stream.getvalue().splitlines() == [
        "gapless: running train.py on an emulated H100 until 10 steady steps",
        "gapless: step 3 of 12 after 12 s",
        "gapless: step 6 of 12 after 24 s",
        "gapless: step 9 of 12 after 36 s",
        "gapless: step 12 of 12 after 48 s",
        "gapless: stopped after 12 steps and 48.0 s",
    ]
