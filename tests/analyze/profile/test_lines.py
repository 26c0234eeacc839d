"""Whose line a row of the host is."""

from __future__ import annotations

import numpy as np
import pytest
from trace_builder import Trace, training

from gapless.analyze.profile.lines import PlaceIndex, enclosing_rows, is_launching, library_of, parse_frame
from gapless.trace.timeline import HostKind


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("train.py", ""),
        ("/home/me/project/train.py", ""),
        ("models/unet.py", ""),
        ("profile.py", ""),
        ("test/model.py", ""),
        ("torch/nn/modules/module.py", "torch"),
        ("transformers/trainer.py", "transformers"),
        ("/opt/conda/lib/python3.9/site-packages/torchmetrics/aggregation.py", "torchmetrics"),
        ("/usr/lib/python3/dist-packages/numpy/core/x.py", "numpy"),
        ("/usr/lib/python3.10/threading.py", "python"),
        ("threading.py", "python"),
        ("/tmp/torchinductor_me/ov/model.py", "torch"),
        ("ductor_root/ov/cov463qhi2m2kw6ldmzzijfv5t3cjjklfci3qly3nsw6upcskct3.py", "torch"),
        ("ov/cover.py", ""),
        ("multiprocessing/spawn.py", "python"),
        ("<frozen importlib._bootstrap>", "python"),
        ("<string>", "python"),
        ("<ipython-input-3-0a1b>", ""),
        ("/home/me/pytorch/torch/optim/sgd.py", "torch"),
        ("C:\\Users\\me\\Lib\\site-packages\\torch\\serialization.py", "torch"),
    ],
)
def test_the_package_of_a_file(file, expected):
    assert library_of(file) == expected


@pytest.mark.parametrize(
    "text", ["<built-in method item of Tensor object at 0x7f>", "nn.Module: Linear_0", "train.py", ""]
)
def test_what_is_no_line(text):
    assert parse_frame(text) is None


def test_a_function_with_brackets_in_its_file():
    line = parse_frame("/data/run(2)/train.py(12): step")
    assert (line.file, line.line, line.function) == ("/data/run(2)/train.py", 12, "step")


def row_of(timeline, name, kind=HostKind.OPERATOR):
    number = timeline.names.index(name)
    return int(np.flatnonzero((timeline.host.name == number) & (timeline.host.kind == kind))[0])


@pytest.mark.parametrize("dialect", ["new", "middle", "old"])
def test_the_line_from_frames_or_from_call_stacks(dialect):
    timeline = training(dialect).timeline()
    place = PlaceIndex(timeline).place(row_of(timeline, "aten::_local_scalar_dense"))
    assert next((line.file, line.function) for line in place.stack) == ("/work/train.py", "train")
    assert place.operators[-1] == "aten::item"


@pytest.mark.parametrize("dialect", ["new", "middle"])
def test_backward_is_attributed_to_the_line_of_forward(dialect):
    timeline = training(dialect).timeline()
    place = PlaceIndex(timeline).place(row_of(timeline, "AddmmBackward0"))
    assert place.node == "AddmmBackward0"
    assert place.forward[0].function == "train"
    assert place.stack == ()


def test_callers_far_above_the_users_line_are_left_out():
    trace = Trace()
    for depth in range(40):
        trace.frame(f"/work/app.py({depth + 1}): level{depth}", depth, 1000 - 2 * depth)
    trace.operator("aten::mm", 100, 5)
    timeline = trace.timeline()
    stack = PlaceIndex(timeline).place(row_of(timeline, "aten::mm")).stack
    assert stack[0].function == "level39"
    assert 1 < len(stack) < 10


def test_built_ins_name_the_call():
    trace = Trace()
    trace.frame("train.py(3): train", 0, 100)
    trace.frame("<built-in method item of Tensor object at 0x7f12>", 5, 50)
    trace.operator("aten::item", 6, 40)
    timeline = trace.timeline()
    assert PlaceIndex(timeline).place(row_of(timeline, "aten::item")).call == "Tensor.item"


def test_rows_with_equal_surroundings_share_a_place():
    trace = Trace()
    trace.frame("train.py(3): train", 0, 10_000)
    for number in range(20):
        now = 100 + 100 * number
        trace.step(number, now - 5, 90)
        trace.frame(f"<built-in method item of Tensor object at 0x7f{number:02}>", now, 50)
        trace.operator("aten::item", now + 1, 40)
    trace.frame("train.py(30): other", 5000, 100)
    trace.operator("aten::item", 5010, 40)
    timeline = trace.timeline()
    rows = np.flatnonzero(timeline.host.name == timeline.names.index("aten::item"))
    codes, places = PlaceIndex(timeline).of(rows)
    assert len(set(codes.tolist())) == len(places) == 2
    assert codes[-1] not in codes[:-1]


def test_places_agree_with_looking_at_each_row(public_trace):
    timeline = public_trace("kineto-resnet50_num_workers_0-worker0.1623143089861-9b36")
    rows = np.flatnonzero(timeline.host.kind == HostKind.CALL)[::37]
    places = PlaceIndex(timeline)
    codes, places_by_code = places.of(rows)
    for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
        own, shared = places.place(row), places_by_code[code]
        assert (own.stack, own.operators, own.node) == (shared.stack, shared.operators, shared.node)


def test_what_covers_a_time():
    timeline = training("new").timeline()
    host = timeline.host
    threads = np.zeros(200, np.int64)
    times = np.linspace(0, 2_000_000, 200).astype(np.int64)
    for time, row in zip(times.tolist(), enclosing_rows(timeline, threads, times).tolist(), strict=True):
        covering = np.flatnonzero((host.thread == 0) & (host.start <= time) & (host.end >= time))
        if row < 0:
            assert not len(covering)
        else:
            assert row in covering
            assert host.end[row] - host.start[row] == (host.end - host.start)[covering].min()


LABELS = (
    "losses.py:40 Dice.forward | for score in scores:",
    "losses.py:42 Dice.forward | score = score[mask]",
)


def labelled(*, frames: bool, around: tuple[str, ...] = LABELS) -> tuple[tuple[str, int, str, str], ...]:
    """The stack of an operator inside labels of `gapless.annotate`, which a labelled ``train`` called."""
    trace = Trace()
    trace.annotation("train.py:7 train | loss = dice(scores)", 0, 100)
    if frames:
        trace.frame("train.py(3): train", 0, 100)
        trace.annotation("train.py:7 train | loss = dice(scores)", 1, 98)
        trace.frame("losses.py(30): forward", 5, 90)
    for at, text in enumerate(around):
        trace.annotation(text, 10 + at, 80 - 2 * at)
    trace.operator("aten::index", 20, 50)
    timeline = trace.timeline()
    place = PlaceIndex(timeline).place(row_of(timeline, "aten::index"))
    assert place.annotations == ()
    return tuple((line.file, line.line, line.function, line.code) for line in place.stack)


def test_labels_tell_the_line_where_no_stacks_were_recorded():
    assert labelled(frames=False) == (
        ("losses.py", 42, "Dice.forward", "score = score[mask]"),
        ("train.py", 7, "train", "loss = dice(scores)"),
    )


def test_labels_tell_which_line_of_a_frame_was_running():
    assert labelled(frames=True) == (
        ("losses.py", 42, "forward", "score = score[mask]"),
        ("train.py", 7, "train", "loss = dice(scores)"),
    )


@pytest.mark.parametrize(
    "name",
    ["forward", "a | b", "model:3 | x", "https://x.org:80 is | y", "losses.py:x f | y", ":3 f | y", ""],
)
def test_annotations_of_the_user_stay_his(name):
    trace = Trace()
    trace.annotation(name or "mine", 0, 100)
    trace.operator("aten::index", 20, 50)
    timeline = trace.timeline()
    place = PlaceIndex(timeline).place(row_of(timeline, "aten::index"))
    assert place.annotations == (name or "mine",)
    assert place.stack == ()


def test_an_operator_launches_where_a_call_within_it_does() -> None:
    trace = Trace()
    trace.operator("autograd::engine::evaluate_function: MmBackward0", 0, 100)
    trace.operator("aten::conv2d", 10, 50)
    trace.operator("aten::empty", 20, 5)
    trace.launch("conv", 40, 5, kernel=(60, 5))
    trace.operator("aten::randn", 70, 20)
    trace.operator("aten::empty", 75, 5)
    trace.operator("aten::view", 95, 3)
    timeline = trace.timeline()
    outermost = {20: True, 40: True, 10: True, 70: False, 75: False, 95: True, 0: False}
    rows = np.arange(len(timeline.host))
    launching_by_start = dict(
        zip((timeline.host.start[rows] // 1000).tolist(), is_launching(timeline, rows).tolist(), strict=True)
    )
    assert launching_by_start == outermost
    assert is_launching(timeline, np.array([-1])).tolist() == [False]
