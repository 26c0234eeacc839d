"""``gapless check --find ARG:A..B``: the script run again for each value, and what is said of it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest

from gapless.analyze import report
from gapless.commands._again import Rerun, RunResult
from gapless.commands._argument import parse
from gapless.commands._find import FitSearch
from gapless.commands._progress import Progress
from gapless.errors import UsageError
from gapless.memory.recorder import Recorder
from gapless.model import Ending, Environment, Session, StepMark

GIB = 1 << 30


def recorded(gigabytes: float, *, steps: int = 3, ending: Ending | None = None) -> Session:
    """A run of so many steps, each of which asks for so much and drops it, on a device with 14 GiB."""
    memory = Recorder()
    for _ in range(steps):
        memory.alloc("held", int(gigabytes * GIB))
        memory.free("held")
        memory.step()
    marks = tuple(StepMark(kind="optimizer", tick=n, time=float(n), name="SGD.step") for n in range(steps))
    run = memory.run(origin="emulated", gpu="Tesla T4", limit=14 * GIB, total_memory=15 * GIB)
    environment = Environment(device="Tesla T4", emulated=True)
    return Session(
        script=("train.py",), environment=environment, ending=ending or Ending(), marks=marks, memory=(run,)
    )


class Script(Rerun):
    """A script that is not run: what it would need follows from its argument."""

    def needs(self, value: int) -> float:
        return 0.25 * value

    def __call__(self, words: Sequence[str], *more: str) -> RunResult:
        value = int(words[-1].partition("=")[2] or words[-1])
        return self.ran(value)

    def ran(self, value: int) -> RunResult:
        return RunResult(recorded(self.needs(value)), 2.0)


def find(script: type[Script], text: str = "batch_size:8..256", *words: str) -> tuple[Session, str]:
    stream = io.StringIO()
    place = FitSearch(parse(text), script((), ("train.py", *words)), Progress(stream, None))()
    return place, stream.getvalue()


def test_the_largest_that_fits_is_found_and_said() -> None:
    session, progress = find(Script)
    search = session.search
    assert search is not None
    assert (search.argument, search.found, search.words) == ("batch_size", 56, "--batch_size=56")
    assert [attempt.value for attempt in search.attempts] == [8, 16, 55, 56, 57, 58]
    assert [attempt.fits for attempt in search.attempts] == [True, True, True, True, False, False]
    assert all(attempt.needs == attempt.value * GIB // 4 for attempt in search.attempts)
    verdict = report(session).verdict
    assert verdict.sentence == "batch_size=56 is the largest that fits the Tesla T4, of 8 to 256"
    assert verdict.why[:3] == (
        "14 of 14 GiB reserved at most",
        "batch_size=57 needs 14.2 of 14 GiB: 256 MiB short",
        "6 runs of the script: batch_size 8, 16, 55, 56, 57, 58",
    )
    assert "batch_size=57: does not fit, 14.2 GiB of 14 GiB (2 s)" in progress


def test_what_is_saved_says_the_same_again(tmp_path) -> None:
    from gapless.model.session import load, save

    session, _ = find(Script)
    save(session, str(tmp_path / "run.json"))
    again = load(str(tmp_path / "run.json"))
    assert again.search == session.search
    assert report(again).verdict == report(session).verdict


def test_the_argument_is_replaced_in_place() -> None:
    session, _ = find(Script, "batch-size:8..64", "--batch-size", "8")
    assert session.search is not None
    assert session.search.words == "--batch-size 56"


def test_all_that_was_asked_about_fits() -> None:
    session, _ = find(Script, "batch_size:8..32:8")
    assert session.search is not None
    assert session.search.found == 32
    assert "the end of your range" in report(session).verdict.sentence


def test_not_even_the_smallest_fits() -> None:
    session, _ = find(Script, "batch_size:100..200")
    assert session.search is not None
    assert (session.search.found, len(session.search.attempts)) == (-1, 1)
    verdict = report(session).verdict
    assert verdict.sentence.startswith("Not even batch_size=100 fits: Does not fit: needs 25 GiB")
    assert verdict.level == "failed"


def test_values_that_fail_below_one_that_fits_are_reported() -> None:
    class Uneven(Script):
        def needs(self, value: int) -> float:
            return 20.0 if value == 57 else 0.24 * value

    session, _ = find(Uneven)
    assert session.search is not None
    assert session.search.found == 58
    assert session.search.holes == (57,)
    assert "a smaller value is not always enough: 57 does not fit" in report(session).verdict.why


def test_an_unrelated_failure_bounds_the_search_and_is_reported() -> None:
    class Short(Script):
        def ran(self, value: int) -> RunResult:
            return RunResult(recorded(self.needs(value), steps=0 if value > 20 else 3), 1.0)

    session, _ = find(Short)
    assert session.search is not None
    assert session.search.found == 20
    assert len(session.search.attempts) <= 10
    assert "batch_size=21 does not run: it took no training step" in report(session).verdict.why


@pytest.mark.parametrize("is_there", [False, True], ids=["no session", "a session"])
def test_a_script_without_the_argument(is_there: bool) -> None:
    class Strict(Script):
        def ran(self, value: int) -> RunResult:
            refused = recorded(1, ending=Ending(how="exit", status=2))
            why = f"train.py: error: unrecognized arguments: --batch_size={value}"
            return RunResult(refused if is_there else None, 0.1, why)

    with pytest.raises(UsageError, match=r"does not run with --batch_size=8: train.py: error: unrecognized"):
        find(Strict)


def test_a_script_that_does_not_heed_the_argument() -> None:
    class Deaf(Script):
        def needs(self, value: int) -> float:
            return 3.0

    with pytest.raises(UsageError, match=r"--batch_size=256 changes nothing: .* needs the same 3 GiB"):
        find(Deaf)


@pytest.mark.parametrize(
    ("options", "module", "words"),
    [
        (["--gpu", "t4"], False, ["--gpu", "t4", "-q", "train.py", "--bs", "8"]),
        (["--gpu", "t4", "-m", "train"], True, ["--gpu", "t4", "-q", "-m", "train", "--bs", "8"]),
        (["--module=train"], True, ["-q", "--module=train", "--bs", "8"]),
        (["--devices", "2", "-mtrain"], True, ["--devices", "2", "-q", "-mtrain", "--bs", "8"]),
    ],
)
def test_more_options_precede_the_script_or_module(options, module, words) -> None:
    again = Rerun(options, ["--bs", "8"] if module else ["train.py", "--bs", "8"], module)
    assert again.command(again.words, "-q")[4:] == words


SCRIPT = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=1)
size = parser.parse_args().batch_size
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    held = torch.empty(size * 2**33, dtype=torch.uint8, device="cuda")  # nobody writes to it
    (weight * 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del held
"""


def test_end_to_end(python, write) -> None:
    pytest.importorskip("torch", minversion="2.10")
    write("train.py", SCRIPT)
    options = ("--gpu", "t4", "--steps", "1", "--find", "batch_size:1..2", "-o", "run.json", "-f", "json")
    process = python("-m", "gapless", "check", *options, "train.py")
    assert process.returncode == 0, process.stderr
    data = json.loads(process.stdout.splitlines()[-1])
    assert data["verdict"] == "batch_size=1 is the largest that fits the Tesla T4, of 1 to 2"
    assert [(attempt["value"], attempt["fits"]) for attempt in data["search"]["attempts"]] == [
        (1, True),
        (2, False),
    ]
    assert data["script"] == ["train.py", "--batch-size=1"]
    assert "gapless: batch_size=2: does not fit" in process.stderr
