"""What a stack tells of the memory that it asks for."""

from __future__ import annotations

import pytest

from gapless.memory.frames import PlaceTable, kind_of, library_of, operator_of
from gapless.model.memory import Place
from gapless.model.source import SourceLine

SITE = "/opt/lib/python3.11/site-packages"


def line(file: str, function: str = "f") -> SourceLine:
    return SourceLine(file, 1, function, library=library_of(file))


USER = line("/home/me/train.py", "<module>")


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/home/me/train.py", ""),
        (f"{SITE}/torch/nn/modules/linear.py", "torch"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy"),
        (f"{SITE}/six.py", "six"),
        ("/usr/lib/python3.12/runpy.py", "python"),
        ("<frozen runpy>", "python"),
        ("<string>", "python"),
        ("/tmp/torchinductor_me/ab/cabc.py", "torch"),
        ("C:\\Python\\Lib\\site-packages\\torch\\optim\\adam.py", "torch"),
        ("<ipython-input-3-abc>", "python"),
    ],
)
def test_libraries_by_their_paths(file, library):
    assert library_of(file) == library


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ([line(f"{SITE}/torch/optim/adamw.py", "_init_group"), USER], "optimizer"),
        (
            [line("/home/me/optimizers.py", "step"), line(f"{SITE}/torch/optim/optimizer.py"), USER],
            "optimizer",
        ),
        ([line(f"{SITE}/torch/nn/modules/module.py", "_apply"), USER], "parameter"),
        ([line(f"{SITE}/torch/nn/modules/linear.py", "__init__"), USER], "parameter"),
        ([line(f"{SITE}/torch/nn/modules/module.py", "_call_impl"), USER], "activation"),
        ([line("/home/me/model.py"), line(f"{SITE}/torch/nn/modules/module.py", "_call_impl")], "activation"),
        ([line(f"{SITE}/torch/autograd/graph.py", "_engine_run_backward"), USER], "backward"),
        ([line(f"{SITE}/torch/utils/data/_utils/pin_memory.py"), USER], "batch"),
        ([line(f"{SITE}/torch/nn/functional.py", "softmax"), USER], "unknown"),
        ([line("/home/me/torch_optim.py", "step"), USER], "unknown"),
        ([line("/home/me/model.py", "forward"), USER], "activation"),
        ([line("/home/me/model.py", "Net.forward"), USER], "activation"),
        ([line(f"{SITE}/torch/distributed/fsdp/_flat_param.py", "unshard"), USER], "communication"),
        (
            [
                line("/home/me/model.py", "forward"),
                line(f"{SITE}/torch/distributed/fsdp/fully_sharded_data_parallel.py", "forward"),
            ],
            "activation",
        ),
        ([], "unknown"),
    ],
)
def test_kinds(stack, kind):
    assert kind_of(stack) == kind


def test_a_forward_within_an_optimizer_is_the_optimizers():
    closure = [line(f"{SITE}/torch/nn/modules/module.py", "_call_impl"), line(f"{SITE}/torch/optim/lbfgs.py")]
    assert kind_of([*closure, USER]) == "optimizer"


def test_kinds_by_native_frames():
    assert kind_of([], ["torch::autograd::Engine::thread_main(x)"]) == "backward"
    assert kind_of([USER], ["at::cuda::getNewWorkspace()"]) == "workspace"
    assert kind_of([USER], ["at::cuda::getCUDABlasLtWorkspace()"]) == "workspace"
    assert kind_of([USER], ["at::_ops::addmm::call(x)"]) == "unknown"
    assert kind_of([USER], ["c10d::Reducer::initialize_buckets(x)"]) == "communication"


def test_operators():
    assert operator_of([]) == ""
    inner_first = ["at::_ops::empty_memory_format::redispatch(x)", "at::_ops::add_Tensor::call(at::Tensor)"]
    assert operator_of(inner_first) == "aten::add_Tensor"
    assert operator_of(["torch::autograd::generated::AddmmBackward0::apply(x)"]) == "AddmmBackward0"


def test_the_same_frames_are_one_place():
    places = PlaceTable()
    frames = [
        {"name": "at::_ops::mm::call", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/home/me/model.py", "line": 3},
        {"name": "broken"},
        "broken",
    ]
    assert places.of_frames(frames) == places.of_frames(list(frames)) == places.of_frames(frames)
    assert places.of_frames(None) == places.of_frames([]) != places.of_frames(frames)
    assert places.places[places.of_frames(frames)] == Place((0,), "aten::mm", "activation", "model.py:3")
    assert places.lines == [SourceLine("/home/me/model.py", 3, "forward")]
