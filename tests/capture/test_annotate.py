"""Statements with their own names in profiles."""

from __future__ import annotations

import asyncio
import copy
import functools
import pickle
import re

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torchmetrics.classification import MulticlassAccuracy

import gapless
from gapless.analyze.profile.lines import parse_label
from gapless.errors import UsageError

FREE = torch.tensor(2.0)


def masked(x, mask, *, scale=2):
    """Its docstring."""
    kept = x[mask]
    for number in range(2):
        kept = kept * scale
        if kept.sum() > 0:
            kept = kept + number
    return kept.mean()


def factory(offset):
    def inner(x):
        nonlocal offset
        offset += 1
        return x + offset

    return inner


def numbers(limit):
    total = 0
    for number in range(limit):
        total += number
        yield total


async def later(x):
    await asyncio.sleep(0)
    return x * 2


def fails(x):
    y = x + 1
    raise ValueError(y.item())


def counted(function):
    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args)

    wrapper.calls = 0
    return wrapper


@counted
def decorated(x):
    return x.exp()


class Base:
    def name(self):
        return "base"


class Loss(Base):
    def __secret(self, x):
        return x * FREE

    def name(self):
        return super().name() + " and more"

    def __call__(self, x):
        return self.__secret(x).sum()

    @property
    def double(self):
        value = FREE * 2
        return value

    @staticmethod
    def plain(x):
        return x + 1

    @classmethod
    def instance_of(cls):
        return cls()


def labels(call):
    """(line within this file's function, function, code) of all labels, in order."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    events = [parse_label(event.name) for event in profiler.events()]
    return [(line.function, line.code) for line in events if line is not None]


def test_each_statement_has_its_line():
    x = torch.tensor([1.0, -2.0, 3.0])
    expected = masked(x, x > 0)
    with gapless.annotate(masked) as annotation:
        assert annotation.names[0].endswith("test_annotate.masked")
        result = []
        events = labels(lambda: result.append(masked(x, x > 0)))
    assert result[0] == expected
    assert events[0] == ("masked", "kept = x[mask]")
    assert [code for _, code in events].count("kept = kept * scale") == 2
    assert [code for _, code in events].count("kept = kept + number") == 2
    assert events[-1] == ("masked", "return kept.mean()")
    assert labels(lambda: masked(x, x > 0)) == []


def test_the_label_is_the_line_of_the_file():
    with gapless.annotate(masked), profile(activities=[ProfilerActivity.CPU]) as profiler:
        masked(torch.ones(3), torch.ones(3) > 0)
    (line,) = (
        finding
        for finding in map(parse_label, (e.name for e in profiler.events()))
        if finding and "mask]" in finding.code
    )
    assert line.file.endswith("test_annotate.py")
    assert line.line == masked.__code__.co_firstlineno + 2
    assert line.is_user


def test_without_a_profiler_nothing_is_entered(monkeypatch):
    def never(*_):
        raise AssertionError("a range was entered")

    with gapless.annotate(masked):
        monkeypatch.setitem(masked.__globals__, "__gapless_range__", never)
        assert masked(torch.ones(3), torch.ones(3) > 0) == 4 + 2 * 0 + 1


@pytest.mark.parametrize(
    ("target", "call"),
    [
        (factory, lambda: factory(1)(torch.ones(2)).tolist()),
        (numbers, lambda: list(numbers(4))),
        (later, lambda: asyncio.run(later(3))),
        (decorated, lambda: decorated(torch.zeros(2)).tolist()),
        (
            Loss,
            lambda: (
                Loss()(torch.ones(2)).item(),
                Loss().name(),
                Loss.plain(1),
                Loss.instance_of().double.item(),
            ),
        ),
        (functools.partial(masked, scale=3), lambda: masked(torch.ones(3), torch.ones(3) > 0).item()),
    ],
    ids=["closure", "generator", "coroutine", "decorated", "class", "partial"],
)
@pytest.mark.parametrize("watched", [False, True])
def test_results_stay(target, call, watched):
    expected = call()
    with gapless.annotate(target):
        result = []
        if watched:
            labels(lambda: result.append(call()))
        else:
            result.append(call())
    assert result == [expected]
    assert call() == expected


def test_closures_that_exist_are_labelled_too():
    inner = factory(1)
    with gapless.annotate(inner):
        assert ("factory.inner", "return x + offset") in labels(lambda: inner(torch.ones(1)))
    assert inner(1) == 4


def test_errors_have_their_line():
    with gapless.annotate(fails), pytest.raises(ValueError, match="2") as caught:
        labels(lambda: fails(torch.ones(1)))
    assert caught.traceback[-1].lineno + 1 == fails.__code__.co_firstlineno + 2


def test_generators_are_not_open_across_their_yields():
    def call():
        for _ in numbers(3):
            torch.ones(1)

    with gapless.annotate(numbers):
        events = labels(call)
    assert ("numbers", "total += number") in events
    assert all("yield" not in code for _, code in events)


def test_the_methods_of_a_metric_of_another_library():
    metric = MulticlassAccuracy(3)
    with gapless.annotate(metric):
        events = labels(lambda: metric.update(torch.randn(4, 3), torch.tensor([0, 1, 2, 1])))
        assert any("_multiclass_stat_scores_format" in code for _, code in events)
        assert all(function.split(".")[-1] != "__setattr__" for function, _ in events)
        copy.deepcopy(metric)
        pickle.dumps(metric)
    assert labels(lambda: metric.update(torch.randn(4, 3), torch.tensor([0, 1, 2, 1]))) == []


def test_twice_is_once():
    x = torch.ones(3)
    with gapless.annotate(masked):
        with gapless.annotate(masked) as again:
            assert again.names == ()
        assert len(labels(lambda: masked(x, x > 0))) == 9


def test_annotated_functions_compile_whole():
    x = torch.ones(3)
    with gapless.annotate(decorated):
        compiled = torch.compile(decorated.__wrapped__, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), x.exp())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (len, "defines no Python functions"),
        (torch.nn.ReLU(), "defines no Python functions"),
        (lambda x: x, "nothing in .* can be labelled: .*was generated"),
        (eval("type('Made', (), {'f': eval('lambda self: 1')})"), "can be labelled"),
    ],
    ids=["built-in", "torch", "lambda", "made"],
)
def test_what_cannot_be_labelled(target, said):
    with pytest.raises(UsageError, match=said):
        gapless.annotate(target)


def test_missing_arguments_and_decorators_get_a_usage_hint():
    with pytest.raises(UsageError, match="annotate what"):
        gapless.annotate()
    annotation = gapless.annotate(masked)
    try:
        with pytest.raises(UsageError, match="not a decorator"):
            annotation(1)
    finally:
        annotation.undo()


def test_one_bad_target_leaves_all_as_they_were():
    before = masked.__code__
    with pytest.raises(UsageError):
        gapless.annotate(masked, len)
    assert masked.__code__ is before


def test_labels_are_what_the_trace_reads(tmp_path):
    with gapless.annotate(masked), profile(activities=[ProfilerActivity.CPU]) as profiler:
        masked(torch.ones(3), torch.ones(3) > 0)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    assert re.search(r"test_annotate\.py:\d+ masked \| kept = x\[mask\]", path.read_text())
