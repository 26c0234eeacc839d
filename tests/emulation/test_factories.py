"""Every way of saying where a tensor shall be."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")
FIRST, SECOND, HOST = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


@pytest.mark.parametrize("named", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda:0"), FIRST])
def test_every_name_of_the_first_device(named: Any) -> None:
    assert torch.zeros(2, device=named).device == FIRST
    assert torch.ones(2).to(named).device == FIRST
    assert torch.ones(2).cuda(named).device == FIRST
    assert torch.nn.Linear(2, 2).to(named).weight.device == FIRST


@pytest.mark.parametrize("named", ["cuda:1", 1, torch.device("cuda", 1), torch.device("cuda:1")])
def test_every_name_of_the_second_device(named: Any) -> None:
    assert torch.zeros(2, device=named).device == SECOND
    assert torch.ones(2).to(named).device == SECOND
    assert torch.ones(2).cuda(named).get_device() == 1


MADE: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "empty": lambda: torch.empty(2, device="cuda"),
    "full": lambda: torch.full((2,), 1.5, device="cuda"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "linspace": lambda: torch.linspace(0, 1, 3, device="cuda"),
    "eye": lambda: torch.eye(2, device="cuda"),
    "randn": lambda: torch.randn(2, device="cuda"),
    "randint": lambda: torch.randint(3, (2,), device="cuda"),
    "randperm": lambda: torch.randperm(3, device="cuda"),
    "normal": lambda: torch.normal(0.0, 1.0, (2,), device="cuda"),
    "hann_window": lambda: torch.hann_window(4, device="cuda"),
    "tril_indices": lambda: torch.tril_indices(2, 2, device="cuda"),
    "fftfreq": lambda: torch.fft.fftfreq(4, device="cuda"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor of an array": lambda: torch.as_tensor(np.ones(2), device="cuda"),
    "from_numpy, moved": lambda: torch.from_numpy(np.ones(2)).to("cuda"),
    "legacy type": lambda: torch.cuda.FloatTensor([1.0, 2.0]),
    "type by name": lambda: torch.ones(2).type("torch.cuda.FloatTensor"),
    "sparse": lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (2,), device="cuda"),
    "sparse of host parts": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 1]]), torch.ones(2), (2,), device="cuda"
    ),
    "csr": lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), device="cuda"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda"),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], device="cuda", layout=torch.jagged
    ),
    "into out": lambda: torch.arange(3, device="cuda", out=torch.empty(3, dtype=torch.int64, device="cuda")),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_factories(name: str) -> None:
    result = MADE[name]()
    assert result.device == FIRST
    assert result.is_cuda
    assert not result.is_cpu


def test_a_factory_without_a_device_is_on_the_host() -> None:
    assert torch.zeros(2).device == HOST
    assert torch.tensor([1.0]).device == HOST
    assert torch.rand(2).device == HOST


def test_like_and_new_follow_their_tensor() -> None:
    on_device = torch.zeros(2, device="cuda:1")
    for result in (
        torch.ones_like(on_device),
        torch.rand_like(on_device),
        torch.empty_like(on_device),
        on_device.new_zeros(3),
        on_device.new_empty(3),
        on_device.new_full((2,), 1.0),
        on_device.new_tensor([1.0]),
        on_device.new([1.0]),
        on_device.clone(),
    ):
        assert result.device == SECOND
    assert torch.zeros_like(on_device, device="cpu").device == HOST
    assert on_device.new_zeros(2, device="cuda:0").device == FIRST


def test_default_device_and_device_context() -> None:
    with torch.device("cuda:1"):
        assert torch.zeros(2).device == SECOND
        assert torch.tensor(1.0).device == SECOND
        assert torch.nn.Linear(2, 2).weight.device == SECOND
        assert torch.zeros(2, device="cpu").device == HOST
    torch.set_default_device("cuda")
    try:
        assert torch.rand(2).device == FIRST
        assert torch.as_tensor([1.0]).device == FIRST
    finally:
        torch.set_default_device(None)
    assert torch.rand(2).device == HOST


def test_current_device_is_what_a_bare_cuda_means() -> None:
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").device == SECOND
        assert torch.zeros(2).cuda().device == SECOND
        assert torch.tensor(1.0, device="cuda").device == SECOND
    assert torch.zeros(2, device="cuda").device == FIRST


def test_a_device_that_is_not_there() -> None:
    for make in (lambda: torch.zeros(2, device="cuda:7"), lambda: torch.ones(2).cuda(7)):
        with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
            make()


def test_modules_move_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    places = lambda: {t.device for t in (*model.parameters(), *model.buffers())}  # noqa: E731
    assert places() == {HOST}
    weight = model[0].weight
    for move, place in (
        (lambda: model.cuda(), FIRST),
        (lambda: model.to("cuda:1"), SECOND),
        (lambda: model.cpu(), HOST),
        (lambda: model.to(torch.zeros(1, device="cuda")), FIRST),
        (lambda: model.to("cpu", torch.float64), HOST),
    ):
        assert move() is model
        assert places() == {place}
    assert model[0].weight is weight  # the parameter stays the same object, its values move


def test_meta_modules_get_memory_on_the_device() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    assert model.weight.is_meta
    model.to_empty(device="cuda")
    assert model.weight.device == FIRST
    assert model(torch.ones(1, 3, device="cuda")).device == FIRST


def test_copies_keep_their_place() -> None:
    on_device = torch.randn(3, device="cuda:1")
    model = torch.nn.Linear(2, 2).to("cuda:1")
    assert copy.copy(on_device).device == SECOND
    assert copy.deepcopy(on_device).device == SECOND
    assert copy.deepcopy(model).weight.device == SECOND
    assert pickle.loads(pickle.dumps(on_device)).device == SECOND


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (None, SECOND),
        ("cpu", HOST),
        ("cuda", FIRST),
        (FIRST, FIRST),
        ({"cuda:1": "cuda:0"}, FIRST),
        (lambda storage, where: storage, HOST),
    ],
)
def test_map_location(location: Any, place: torch.device) -> None:
    file = io.BytesIO()
    torch.save({"x": torch.arange(3, device="cuda:1")}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=location)["x"]
    assert loaded.device == place
    assert loaded.tolist() == [0, 1, 2]


def test_data_grad_and_swap() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    weight.data = weight.data.to("cuda")
    assert weight.device == FIRST
    weight.sum().backward()
    assert weight.grad is not None
    assert weight.grad.device == FIRST
    with pytest.raises(
        RuntimeError, match="attempting to assign a gradient with device type 'cpu' to a tensor"
    ):
        weight.grad = torch.zeros(3)
    here, on_device = torch.zeros(2), torch.ones(2, device="cuda")
    torch.utils.swap_tensors(here, on_device)
    assert (here.device, on_device.device) == (FIRST, HOST)


def test_storages() -> None:
    on_device = torch.arange(4.0, device="cuda")
    storage = on_device.untyped_storage()
    assert (storage.device, storage.is_cuda) == (FIRST, True)
    assert storage.cpu().device == HOST
    assert storage.clone().device == FIRST
    assert torch.zeros(2).untyped_storage().cuda().device == FIRST
    assert torch.UntypedStorage(4, device="cuda:1").device == SECOND
    assert torch.empty(0, device="cuda").set_(storage, 0, (4,)).device == FIRST
    assert torch.ones(2, device="cuda").set_().device == FIRST


def test_python_numbers_in_a_backward_of_ones_own_are_where_the_others_are():
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.where(torch.arange(4) > 1, 1, 0).to(grad.device)

    x = torch.ones(4, device="cuda", requires_grad=True)
    Masked.apply(x).sum().backward()
    assert x.grad.device.type == "cuda"
    assert x.grad.tolist() == [0, 0, 1, 1]
