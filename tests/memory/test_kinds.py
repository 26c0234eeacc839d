"""What became of memory, told from the passes that it outlives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.memory.kinds import kinds_of, resolve_kinds
from gapless.memory.recorder import Recorder
from gapless.memory.report import report
from gapless.model.memory import ALLOC, MemoryRun, check
from gapless.model.source import SourceLine

LINE = SourceLine("/home/me/model.py", 10, "forward")
LOSS = SourceLine("/home/me/train.py", 7, "<module>")
MIB = 1 << 20


def kinds_at_the_end(recorder: Recorder) -> list[str]:
    run = recorder.run()
    live = {ident: place for action, ident, place in zip(run.action, run.ident, run.place, strict=True)
            if action == ALLOC}  # fmt: skip
    return list(kinds_of(run, live, len(run) - 1).values())


def step(recorder: Recorder, number: int, keeps: bool = False) -> None:
    """One step: an activation, a temporary, a loss; a gradient and backward's own; state and its work."""

    def ask(name: str, kind: str) -> None:
        recorder.alloc((number, name), MIB, stack=[LOSS if name == "loss" else LINE], kind=kind)

    def end(name: str, of: int = number) -> None:
        recorder.free((of, name))

    ask("saved", "activation")
    ask("work", "activation")
    end("work")
    if keeps:
        ask("out", "activation")
        if number:
            end("out", number - 1)
    ask("loss", "unknown")
    ask("grad", "backward")
    ask("flow", "backward")
    end("loss")
    end("flow")
    end("saved")
    ask("state", "optimizer")
    ask("scratch", "optimizer")
    end("scratch")
    end("grad")
    recorder.step()


def test_each_is_what_it_outlives():
    recorder = Recorder()
    step(recorder, 0)
    step(recorder, 1)
    expected = ["activation", "temporary", "activation", "gradient", "temporary", "optimizer", "temporary"]
    assert kinds_at_the_end(recorder) == [*expected, *expected]


def test_an_unfinished_pass_does_not_tell():
    recorder = Recorder()
    recorder.alloc("x", MIB, stack=[LINE], kind="activation")
    assert kinds_at_the_end(recorder) == ["forward"]
    recorder.alloc("y", MIB, stack=[LINE], kind="backward")
    assert kinds_at_the_end(recorder) == ["activation", "backward"]
    recorder.alloc("z", MIB, stack=[LINE], kind="optimizer")
    assert kinds_at_the_end(recorder) == ["activation", "gradient", "optimizer"]


def test_what_an_earlier_forward_pass_left_is_kept():
    recorder = Recorder()
    for number in range(3):
        step(recorder, number, keeps=True)
    recorder.alloc("next", MIB, stack=[LINE], kind="activation")
    kinds = kinds_at_the_end(recorder)
    assert [kinds[2], kinds[10], kinds[18]] == ["activation", "activation", "kept"]
    assert kinds[-1] == "forward"


def test_weights_and_what_nobody_names_stay_what_they_are():
    recorder = Recorder()
    recorder.alloc("w", MIB, stack=[LINE], kind="parameter")
    recorder.alloc("?", MIB)
    step(recorder, 0)
    recorder.free("?")
    assert kinds_at_the_end(recorder)[:2] == ["parameter", "unknown"]


def slowly(run: MemoryRun, ident: int, kinds_requested: dict[int, str]) -> str:
    """The same by walking each allocation's life event by event."""
    passes = {"activation": "f", "backward": "b", "optimizer": "o"}
    current, inside, later, ended = "", False, [], False
    for action, other, place in zip(run.action, run.ident, run.place, strict=True):
        kind = passes.get(run.places[place].kind, "") if action == ALLOC else ""
        if kind and kind != current:
            current = kind
            if inside:
                later.append(kind)
        if action == ALLOC and other == ident:
            inside = True
        elif action != ALLOC and other == ident:
            ended, inside = True, False
    kind = kinds_requested[ident]
    if kind == "activation":
        if ended and not later:
            return "temporary"
        return "activation" if "b" in later else "forward"
    if kind == "backward":
        return "gradient" if later else "temporary" if ended else "backward"
    if kind == "optimizer":
        return "temporary" if ended and not later else "optimizer"
    return kind


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(("activation", "backward", "optimizer", "parameter", "")),
                          st.integers(0, 20)), max_size=40))  # fmt: skip
def test_any_run_matches_a_walk_over_each_allocation(events):
    recorder = Recorder()
    kinds_requested: dict[int, str] = {}
    alive: list[int] = []
    for kind, pick in events:
        if kind:
            recorder.alloc(len(kinds_requested), MIB, stack=[LINE], kind=kind)
            alive.append(len(kinds_requested))
            kinds_requested[len(kinds_requested)] = kind
        elif alive:
            recorder.free(alive.pop(pick % len(alive)))
    run = recorder.run()
    live = {ident: place for action, ident, place in zip(run.action, run.ident, run.place, strict=True)
            if action == ALLOC}  # fmt: skip
    assert kinds_of(run, live, -1) == {ident: slowly(run, ident, kinds_requested) for ident in live}
    apart = resolve_kinds(run)
    assert check(apart) == ""
    assert [
        apart.places[at].kind for act, at in zip(apart.action, apart.place, strict=True) if act == ALLOC
    ] == [slowly(run, ident, kinds_requested) for ident in live]
    assert sum(report(run).peak.kinds.values()) == sum(owner.bytes for owner in report(run).peak.owners)
