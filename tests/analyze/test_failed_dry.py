"""A failure without values is put down to an assumed value only where it may be why."""

from __future__ import annotations

import io

import msgspec
import pytest

from gapless.analyze import report
from gapless.analyze.run.failed_dry import failure_without_values, with_failed_dry
from gapless.commands._again import Rerun, RunResult
from gapless.commands._progress import Progress
from gapless.commands._with_values import _drop_assumptions, with_values
from gapless.model import Ending, Environment, Session, SourceLine, StepMark, Verdict
from gapless.model.assumption import Assumption, FailedDry


def at(line: int, file: str = "/home/me/train.py") -> tuple[SourceLine, ...]:
    return (SourceLine(file, line, "main"),)


def size(line: int) -> Assumption:
    return Assumption(
        kind="size", stack=at(line), value=5, low=5, high=5, of=20, of_low=20, of_high=20, times=1
    )


def failed(message: str = "RuntimeError: sizes", how: str = "error", dry: bool = True) -> Session:
    return Session(
        script=("train.py",),
        environment=Environment(dry=dry),
        ending=Ending(how=how, status=1, message=message, where="src/train.py:31"),  # type: ignore[arg-type]
        assumptions=(size(40), size(12), size(30), size(20)),
    )


def test_the_assumptions_before_the_line_that_failed_are_named() -> None:
    failure = failure_without_values(failed())
    assert failure is not None
    assert failure.where == "train.py:31"
    assert failure.assumed == ("5 of 20 elements at train.py:30", "5 of 20 elements at train.py:20")


@pytest.mark.parametrize(
    "session",
    [
        failed(dry=False),
        failed("ModuleNotFoundError: No module named 'x'"),
        failed("torch.OutOfMemoryError: CUDA out of memory"),
        failed(how="interrupted"),
        failed(how="finished"),
        failed("an operator that has no kernel", how="not-emulated"),
        msgspec.structs.replace(failed(), assumptions=()),
        msgspec.structs.replace(failed(), ending=Ending(how="exit")),
    ],
)
def test_what_no_assumed_value_can_bring_about_is_not_put_down_to_one(session: Session) -> None:
    assert failure_without_values(session) is None


@pytest.mark.parametrize(
    "session",
    [
        failed(how="exit"),
        failed("KeyError: 3"),
        failed(
            "a.py:3: The result of aten::x depends on values, which a dry run does not have",
            how="not-emulated",
        ),
    ],
)
def test_other_failures_may_be(session: Session) -> None:
    assert failure_without_values(session) is not None


def test_the_verdict_says_it_first() -> None:
    first = Verdict(sentence="2 syncs in every step", level="act", why=("evidence",))
    assert with_failed_dry(first, None) is first
    again = with_failed_dry(first, FailedDry(message="IndexError: 7", where="train.py:31"))
    assert again.sentence.startswith("Checked with values: without them the script failed at train.py:31. 2")
    assert again.level == "act"
    kept = with_failed_dry(first, FailedDry(message="IndexError: 7", kept="check it with `--values`"))
    assert kept.sentence.startswith("Without values the script failed, probably")
    assert kept.sentence.endswith(": check it with `--values`")
    assert "2 syncs in every step" in kept.why


class Never(Rerun):
    def __call__(self, *words, **options):  # type: ignore[no-untyped-def]
        raise AssertionError("it was run again")


class Slow(Rerun):
    """Comes to a step only where its batch is of one item."""

    def __call__(self, words, *more, **options):  # type: ignore[no-untyped-def]
        if words[-1] != "1":
            return RunResult(Session(ending=Ending(how="interrupted")), 300.0)
        mark = StepMark(kind="optimizer", tick=0, time=0.0, name="SGD.step")
        return RunResult(Session(script=("train.py",), marks=(mark,)), 10.0)


@pytest.mark.parametrize(
    ("words", "smaller", "kept"),
    [
        (["train.py", "--batch-size", "8"], "--batch-size 1", ""),
        (["train.py", "--batch-size", "64"], "", "did not come to a step in 300 s, with `--batch-size 8` as"),
        (["train.py"], "", "did not come to a step in 300 s; try `--values` with a smaller model or batch"),
    ],
)
def test_a_run_with_values_that_takes_too_long_is_tried_with_a_smaller_batch(
    words: list[str], smaller: str, kept: str
) -> None:
    outcome = with_values(failed(), Slow([], words), quiet(), explicit=False, peak=0)
    assert outcome is not None
    assert outcome.failed_dry is not None
    assert outcome.failed_dry.smaller == smaller
    assert kept in outcome.failed_dry.kept
    sentence = report(outcome).verdict.sentence
    assert sentence.startswith("Checked with values and a smaller batch (`--batch-size 1`)") == bool(smaller)


def test_a_batch_that_would_fit_this_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.commands._with_values._available_memory", lambda: 10 << 30)
    outcome = with_values(
        failed(), Never([], ["train.py", "--bs", "3", "--batch=32"]), quiet(), explicit=False, peak=20 << 30
    )
    assert outcome is not None
    assert outcome.failed_dry is not None
    assert "try `--values` with `--batch=8`" in outcome.failed_dry.kept  # a quarter, for 7 GiB of 20


def quiet() -> Progress:
    return Progress(io.StringIO(), 10, quiet=True)


@pytest.mark.parametrize(
    ("explicit", "peak", "says"), [(True, 0, "`--values`"), (False, 1 << 50, "1,024 TiB")]
)
def test_a_failed_dry_run_is_not_repeated_if_unwanted_or_too_large(
    explicit: bool, peak: int, says: str
) -> None:
    again = Never([], ["train.py"])
    outcome = with_values(failed(), again, quiet(), explicit=explicit, peak=peak)
    assert outcome is not None
    assert outcome.failed_dry is not None
    assert says in outcome.failed_dry.kept
    assert "--assume train.py:30=VALUE" in outcome.failed_dry.kept
    assert report(outcome).verdict.sentence.startswith("Without values the script failed at train.py:31")
    assert with_values(failed(dry=False), again, quiet(), explicit=False, peak=0) is None


def test_a_run_with_values_lists_no_assumptions() -> None:
    words = ["--dry", "--assume", "train.py:3=1", "--steps", "3", "--assume=train.py:4=2"]
    assert _drop_assumptions(words) == ["--dry", "--steps", "3"]
