"""Mixed devices raise as CUDA does, in its words; what CUDA accepts passes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

SAME = "Expected all tensors to be on the same device, but "


@pytest.fixture(autouse=True)
def device():
    with Emulator(EmulatorOptions(devices=2)) as emulator:
        yield emulator


def on_device(*shape):
    return torch.ones(*shape, device="cuda")


REFUSED = {
    "add": (lambda: on_device(3) + torch.ones(3), SAME + "found at least two devices, cuda:0 and cpu!"),
    "in place": (
        lambda: torch.ones(3).add_(on_device(3)),
        SAME + "found at least two devices, cuda:0 and cpu!",
    ),
    "two GPUs": (
        lambda: on_device(3) + torch.ones(3, device="cuda:1"),
        SAME + "found at least two devices, cuda:0 and cuda:1!",
    ),
    "linear": (
        lambda: torch.nn.Linear(3, 3).cuda()(torch.ones(2, 3)),
        SAME + "got mat1 is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_addmm)",
    ),
    "mm": (
        lambda: torch.ones(2, 3) @ on_device(3, 2),
        SAME + "got mat2 is on cuda:0, different from other tensors on cpu "
        "(when checking argument in method wrapper_CUDA_mm)",
    ),
    "cat": (
        lambda: torch.cat([on_device(2), torch.ones(2)]),
        SAME + "got tensors is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_cat)",
    ),
    "embedding": (
        lambda: torch.nn.Embedding(3, 2).cuda()(torch.tensor([1])),
        SAME + "got index is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA__index_select)",
    ),
    "cross entropy": (
        lambda: F.cross_entropy(on_device(2, 3), torch.tensor([1, 2])),
        SAME + "got target is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_nll_loss_forward)",
    ),
    "convolution of a host image": (
        lambda: torch.nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2)),
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or input "
        "should be a MKLDNN tensor and weight is a dense tensor",
    ),
    "convolution with host weights": (
        lambda: torch.nn.Conv2d(1, 1, 1)(on_device(1, 1, 2, 2)),
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    ),
    "device indices into a host tensor": (
        lambda: torch.ones(3)[torch.tensor([0], device="cuda")],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "pinning": (
        lambda: on_device(2).pin_memory(),
        "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, words = REFUSED[name]
    with pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value) == words


ACCEPTED = {
    "a host scalar": lambda: on_device(3) + torch.tensor(2.0),
    "a Python number": lambda: on_device(3) * 2,
    "host indices": lambda: on_device(3)[torch.tensor([0, 1])],
    "copy_": lambda: on_device(3).copy_(torch.ones(3)),
    "a host scalar to compare with": lambda: on_device(3) > torch.tensor(0.5),
    "lengths": lambda: torch.nn.utils.rnn.pack_padded_sequence(on_device(4, 2, 3), torch.tensor([4, 2])).data,
    "an optimizer's step on the host": lambda: run_step(),
}


def run_step():
    model = torch.nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(on_device(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.weight]["step"].device.type == "cpu"
    return model.weight


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    assert ACCEPTED[name]().is_cuda
