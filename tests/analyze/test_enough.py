"""When a run has shown enough: real loops, with marks from a clock that is turned by hand."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable

import pytest

from gapless.analyze.run.enough import Enough
from gapless.capture.stopping import variables
from gapless.model import SourceLine, StepMark

FILE = "/work/loops.py"
STEPS, LONGER = 12, 10.0


class Stopped(Exception):
    """The script was seen for long enough."""


class Run:
    """Runs `script`, in which ``step()`` ends a step of `each` seconds, until it is enough."""

    def __init__(
        self,
        script: str,
        each: float = 0.1,
        longer: float = LONGER,
        batches: Callable[..., float] = lambda at: 0.0,
    ) -> None:
        self.text = textwrap.dedent(script).strip("\n") + "\n"
        self.enough = Enough(
            STEPS,
            lambda at: variables(at.file, at.first, at.last),
            longer,
            read=lambda file: self.text,
            batches=batches,
        )
        self.count, self.each, self.calls = 0, each, []
        names = {"step": self.step, "__name__": "__main__"}
        for name in ("evaluate", "save_checkpoint", "collect", "log", "save"):
            names[name] = lambda *args, of=name: self.calls.append((of, self.count))
        try:
            exec(compile(self.text, FILE, "exec"), names)
            self.stopped = False
        except Stopped:
            self.stopped = True

    def step(self) -> None:
        self.count += 1
        frames = []
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == FILE:
            code = self.text.splitlines()[frame.f_lineno - 1].strip()
            frames.append(SourceLine(FILE, frame.f_lineno, frame.f_code.co_name, code))
            frame = frame.f_back
        mark = StepMark(
            kind="optimizer", tick=self.count - 1, time=self.count * self.each, stack=tuple(frames)
        )
        if self.enough(mark, self.count):
            raise Stopped

    def phases(self):
        return {(part.name, part.every, min(part.times, 1)) for part in self.enough.phases()}


def test_a_flat_loop_is_left_after_the_steps_asked_for():
    run = Run("for i in range(1000):\n    step()\n    log(i)\n")
    assert (run.count, run.phases()) == (STEPS, set())


@pytest.mark.parametrize("bound", ["50", "every", "args.every", "Config.every", "config['every']"])
def test_an_evaluation_every_n_steps_is_waited_for(bound):
    run = Run(f"""
        class Config:
            every = 50
        args, config, every = Config(), {{"every": 50}}, 50
        i = 0
        while True:
            if i % {bound} == 0 and i > 0:
                evaluate()
            step()
            i += 1
    """)
    assert run.calls == [("evaluate", 50)]
    assert run.count <= 52
    assert run.phases() == {("evaluation", 50, 1)}


def test_one_that_is_too_far_away_is_not():
    run = Run("for i in range(9999):\n    step()\n    if (i + 1) % 500 == 0:\n        evaluate()\n")
    assert (run.count, run.phases()) == (STEPS, {("evaluation", 500, 0)})
    assert (
        Run("for i in range(9999):\n    step()\n    if (i + 1) % 99 == 0:\n        save()\n", 0.05).count
        < 102
    )


def test_without_more_time_it_is_left_at_once():
    assert (
        Run("for i in range(99):\n    step()\n    if i % 20 == 19:\n        evaluate()\n", longer=0).count
        == STEPS
    )


def test_the_end_of_an_epoch_is_waited_for_where_it_is_near():
    script = """
        def train(loader):
            for batch in loader:
                step()
        for epoch in range(9):
            train([0] * {length})
            evaluate()
    """
    run = Run(script.format(length=40))
    assert (run.calls, run.count, run.phases()) == ([("evaluate", 40)], 41, {("evaluation", 40, 1)})
    far = Run(script.format(length=4000))
    assert (far.calls, far.count, far.phases()) == ([], STEPS, {("evaluation", 4000, 0)})


def test_a_length_that_nobody_knows_costs_the_time_there_is():
    run = Run("""
        for epoch in range(9):
            for batch in (one for one in range(100000)):
                step()
            evaluate()
    """)
    assert run.calls == []
    assert STEPS + LONGER / run.each - 1 <= run.count <= STEPS + LONGER / run.each + 1


def test_a_rollout_before_the_updates_is_seen_twice():
    run = Run("""
        for update in range(9):
            for t in range(32):
                collect(t)
            for epoch in range(4):
                for start in range(0, 32, 8):
                    step()
    """)
    assert [count for _, count in run.calls[::32]] == [0, 16]
    assert run.count == 17
    assert ("rollout", 16, 1) in run.phases()


def test_a_while_loop_around_counted_ones():
    run = Run("""
        done = 0
        while done < 1000:
            collect()
            for epoch in range(5):
                step()
                done += 1
    """)
    assert run.count == STEPS
    assert ("rollout", 5, 1) in run.phases()


def test_what_is_asked_of_the_script_runs_none_of_its_code():
    run = Run("""
        class Sly:
            @property
            def every(self):
                raise SystemExit
            def __mod__(self, other):
                raise SystemExit
            __rmod__ = __len__ = __bool__ = __eq__ = __getattr__ = __iter__ = __mod__
            __hash__ = None
        sly = Sly.__new__(Sly)
        i = 0
        while True:
            step()
            i += 1
            if i < 0 and (i % sly == 0 or i % sly.every == sly or sly):
                evaluate()
    """)
    assert run.count == STEPS


def test_a_part_that_takes_too_long_is_left():
    run = Run("for i in range(99):\n    step()\n    if i % 20 == 19:\n        evaluate()\n")
    reached = STEPS * run.each
    assert not run.enough.overdue(reached + LONGER)
    assert run.enough.overdue(reached + 2 * LONGER + 1)
    assert not Enough(STEPS, lambda at: None).overdue(1e9)


def test_two_loops_one_after_the_other():
    run = Run("""
        for i in range(5):
            step()
        for epoch in range(3):
            for i in range(20):
                step()
            save_checkpoint()
    """)
    assert run.calls == [("save_checkpoint", 25)]
    assert list(itertools.islice(run.phases(), 1)) == [("checkpoint", 20, 1)]


@pytest.mark.parametrize(
    ("loop", "batches"),
    [("for i, batch in enumerate(loader)", 0.0), ("for batch in loader", 4.0)],
    ids=["its own variable counts", "its batches are counted"],
)
def test_an_epoch_has_fewer_steps_where_gradients_are_accumulated(loop, batches):
    script = f"""
        loader, seen = [object() for _ in range(96)], 0
        for epoch in range(9):
            {loop}:
                seen += 1
                if seen % 4 == 0:
                    step()
            evaluate()
    """
    run = Run(script, batches=lambda at: batches)
    assert (run.calls, run.phases()) == ([("evaluate", 24)], {("evaluation", 24, 1)})


def test_several_steps_may_be_made_of_one_batch():
    run = Run("""
        for epoch in range(9):
            for i in range(10):
                step()
                step()
            evaluate()
    """)
    assert (run.calls, run.phases()) == ([("evaluate", 20)], {("evaluation", 20, 1)})
