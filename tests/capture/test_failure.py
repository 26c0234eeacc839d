"""Tracebacks without Gapless's own frames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import gapless
from gapless.capture.failure import message, place, show, without_own_frames
from gapless.capture.stopping import EnoughSteps, Stopper, Watcher, chain, comes_from_stopping
from gapless.emulation.support import faults
from gapless.model import StepMark

MARK = StepMark(kind="user", tick=0, time=0.0)


class Watch(Watcher):
    """Has seen enough at once, if `seen`, and between marks after `seconds`."""

    def __init__(self, is_seen: bool, seconds: float = float("inf")) -> None:
        self.seen, self.seconds = is_seen, seconds

    def enough(self, mark: StepMark) -> bool:
        return self.seen

    def overdue(self, seconds: float) -> bool:
        return seconds > self.seconds


def caught(action) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_own_frames_are_left_out_everywhere():
    class Failing(Watcher):
        def enough(self, mark):
            raise ValueError("x")

    error = caught(lambda: Stopper(Failing())(MARK))
    names = []
    trace = without_own_frames(error.__traceback__)
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names == ["caught", "<lambda>", "enough"]
    assert without_own_frames(None) is None


def raised_in_gapless(code: str) -> BaseException:
    file = Path(gapless.__file__).parent / "emulation" / "made_up.py"
    return caught(lambda: exec(compile(f"\n\n{code}", str(file), "exec"), {}))


@pytest.mark.parametrize("code", ["not_there", "{}['x']", "None.x", "assert False", "[][0]", "1 + 'x'"])
def test_a_mistake_of_gapless_itself_is_owned_up_to(code):
    error = raised_in_gapless(code)
    assert faults.find_failure(error) == "gapless/emulation/made_up.py:3"
    said = str(faults.make_defect(error, "aten::add.Tensor"))
    assert said.startswith(f"Gapless failed while emulating aten::add.Tensor: {type(error).__name__}: ")
    assert "not in the script; please report it" in said
    assert said.count("\n") == 0


@pytest.mark.parametrize("code", ["raise RuntimeError('mixed devices')", "raise KeyError('x')", "int('x')"])
def test_what_a_device_may_raise_is_none(code):
    assert faults.find_failure(raised_in_gapless(code)) == ""
    assert faults.find_failure(caught(lambda: {}["the script's own"])) == ""


def test_place_and_message():
    error = caught(lambda: int("x"))
    folder, file = __file__.rsplit("/", 1)
    assert place(error, folder).startswith(f"{file}:")
    assert place(error, "/nowhere").startswith(f"{__file__}:")
    assert message(error) == "ValueError: invalid literal for int() with base 10: 'x'"
    assert message(ValueError()) == "ValueError"
    cuda = "CUDA error: operation not permitted when stream is capturing"
    assert message(RuntimeError(f"{cuda}\nFor more, look there.")) == f"RuntimeError: {cuda}"


def test_the_message_is_its_first_line():
    assert message(RuntimeError("sizes differ\n  a: 3\n  b: 4")) == "RuntimeError: sizes differ"
    missing = "Error(s) in loading state_dict for Net:\n\tMissing key(s): a"
    assert message(RuntimeError(missing)) == (
        "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): a"
    )
    noted = ValueError("x")
    if hasattr(noted, "add_note"):  # since Python 3.11
        noted.add_note("seen in step 3")
    assert message(noted) == "ValueError: x"
    assert message(caught(lambda: compile("a = = 1", "a.py", "exec"))) == "SyntaxError: invalid syntax"


@pytest.mark.parametrize("head", ["", "\n\n-- Process 1 terminated with the following error:\n"])
def test_of_another_processs_traceback_what_was_raised_there(head):
    trace = f'{head}Traceback (most recent call last):\n  File "a.py", line 3, in run\n    x.cuda(1)\n'
    error = RuntimeError(f"{trace}torch.AcceleratorError: CUDA error: no\nFor more, look there.\n")
    assert message(error) == "torch.AcceleratorError: CUDA error: no"
    assert message(RuntimeError("Traceback (most recent call last):\n  cut off")) != ""


def test_a_missing_device_is_reported_with_the_option(capsys):
    with gapless.emulate():
        error = caught(lambda: torch.zeros(1, device="cuda:3"))
    show(error)
    assert "--devices N" in capsys.readouterr().err
    show(ValueError("x"))
    assert "--devices" not in capsys.readouterr().err


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_consequences_of_stopping_are_known(link):
    error = ValueError("cleanup")
    assert not comes_from_stopping(error)
    setattr(error, link, EnoughSteps())
    later = RuntimeError("later")
    later.__context__ = error
    assert comes_from_stopping(later)


def test_a_chain_that_bites_its_tail():
    a, b = ValueError("a"), ValueError("b")
    a.__context__, b.__context__ = b, a
    assert chain(a) == [a, b]


def test_a_stopper_gives_up():
    stopper = Stopper(Watch(True))
    for _ in range(5):
        assert isinstance(caught(lambda: stopper(MARK)), EnoughSteps)
        assert not stopper.ignored
    stopper(MARK)
    assert stopper.ignored
    stopper(MARK)


def test_a_stopper_leaves_children_alone():
    Stopper(Watch(True), pid=-1)(MARK)
    assert Stopper(Watch(False))(MARK) is None
    assert Stopper()(MARK) is None


def test_between_marks_a_script_is_stopped_once_it_is_overdue():
    stopper = Stopper(Watch(False, 20))
    stopper.between(19)
    assert (stopper.requests, stopper.cut) == (0, 0.0)
    with pytest.raises(EnoughSteps):
        stopper.between(21)
    assert (stopper.requests, stopper.cut) == (1, 21)
    Stopper(Watch(False, 20), pid=-1).between(21)


def test_no_thread_is_stopped_between_marks():
    stopper = Stopper(Watch(False, 20))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stopper.between, 99).result()
    assert stopper.requests == 0


def test_what_only_torchscript_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with gapless.emulate():
        traced = torch.jit.trace(doubled, torch.ones(2, device="cuda"))
        message, other = caught(lambda: traced.graph), caught(lambda: traced.elsewhere)
    show(message)
    assert (
        "TorchScript runs here as the Python code it was made from, which has no `graph`"
        in capsys.readouterr().err
    )
    show(other)
    assert "TorchScript" not in capsys.readouterr().err
