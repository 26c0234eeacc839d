"""Values read on the host: one wait each, at whatever spelling, and none for host tensors."""

from __future__ import annotations

import pytest
import torch

from gapless.emulate.emulator import Emulator

READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool(x.any()),
    "not": lambda x: not x.any(),
    "index": lambda x: [0, 1, 2, 3][x.sum().long()],
    "range": lambda x: range(x.sum().long()),
    "slice": lambda x: x[: x.sum().long()],
    "in": lambda x: 1 in x,
    "format": lambda x: f"{x.sum():.3f}",
    "str": lambda x: str(x),
    "repr": lambda x: repr(x),
    "percent": lambda x: "%s" % x,  # noqa: UP031
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x),
    "is_nonzero": lambda x: torch.is_nonzero(x.sum()),
    "max of two": lambda x: max(x.sum(), x.min()),
    "numpy by force": lambda x: x.numpy(force=True),
    "tensor of a list": lambda x: torch.tensor([x.sum(), 1.0]),
    "tensor of lists": lambda x: torch.as_tensor([[1.0], [x.min()]]),
    "integer tensor of a list": lambda x: torch.LongTensor([x.sum().long(), 1]),
    "legacy tensor of a list": lambda x: torch.Tensor([x.sum()]),
    "values of a sparse tensor": lambda x: torch.sparse_coo_tensor(
        [[0]], [x.sum()], (1,), check_invariants=False
    ),
}
LISTS = {
    "on the host": (lambda x: torch.tensor([x.sum(), x.min(), x.max()]), 3),
    "on the device": (lambda x: torch.tensor((x.sum(), x.min()), device="cuda"), 3),
    "beside another": (lambda x: x.new_tensor([x.sum()]), 2),
    "legacy, beside another": (lambda x: x.new([x.sum(), x.min()]), 3),
    "legacy, on the device": (lambda x: torch.cuda.FloatTensor([x.sum(), x.min()]), 3),
    "of one of these": (lambda x: torch.as_tensor(x), 0),
    "stacked": (lambda x: torch.stack([x.sum(), x.min()]), 0),
}
"""Each tensor in a list is read, and then the list is copied to where the tensor is to be."""
SILENT = {
    "iteration": lambda x: list(x),
    "len": lambda x: len(x),
    "shape": lambda x: (x.shape, x.numel(), x.dtype, x.device, x.is_cuda, x.stride()),
    "truth of the shape": lambda x: bool(x.numel()),
    "is": lambda x: x is None,
    "comparison": lambda x: x == x,
    "sum": lambda x: sum(x),
    "detach": lambda x: x.detach().data,
    "hash": lambda x: {x: 1},
    "format of the shape": lambda x: f"{tuple(x.shape)} {x.device}",
}


@pytest.fixture
def emulator():
    with Emulator() as emulator:
        yield emulator


@pytest.mark.parametrize("name", READS)
def test_a_read_waits_once(emulator, name):
    x = torch.ones(3, device="cuda")
    READS[name](x)
    assert emulator.recorder.total == 1
    (site,) = emulator.session().sites
    assert site.mechanism in ("read", "d2h")


@pytest.mark.parametrize("name", LISTS)
def test_each_tensor_in_a_list_is_read(emulator, name):
    make, waits = LISTS[name]
    x = torch.tensor([1.0, 2.0]).cuda()
    before = emulator.recorder.total
    made = make(x)
    assert emulator.recorder.total - before == waits
    assert made.is_cuda == (name != "on the host")


@pytest.mark.parametrize("name", READS)
def test_a_read_of_a_host_tensor_does_not(emulator, name):
    READS[name](torch.ones(3))
    assert emulator.recorder.total == 0


@pytest.mark.parametrize("name", SILENT)
def test_what_reads_no_value_does_not_wait(emulator, name):
    SILENT[name](torch.ones(3, device="cuda"))
    assert emulator.recorder.total == 0


def test_values_are_real(emulator):
    x = torch.arange(4, device="cuda")
    assert x.tolist() == [0, 1, 2, 3]
    assert x.sum().item() == 6
    assert repr(x) == "tensor([0, 1, 2, 3], device='cuda:0')"


def test_numpy_refuses_a_device_tensor(emulator):
    import numpy

    x = torch.ones(2, device="cuda:0")
    words = r"^can't convert cuda:0 device type tensor to numpy\. Use Tensor\.cpu\(\) to copy the tensor"
    for read in (lambda: x.numpy(), lambda: numpy.asarray(x), lambda: numpy.array(x)):
        with pytest.raises(TypeError, match=words):
            read()
    assert x.cpu().numpy().tolist() == [1.0, 1.0]
