"""Copies between host and device: which of them wait, and how often."""

from __future__ import annotations

import pickle
from multiprocessing import reduction

import numpy
import pytest
import torch
from torch.multiprocessing import reductions

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import gpus
from gapless.torch_internals import VERSION


@pytest.fixture
def waits():
    """Counts the waits of a call, with their details."""
    with Emulator(EmulatorOptions(devices=2)) as emulator:

        def count(call):
            before = emulator.recorder.total
            listener = events.append
            emulator.recorder.on_wait.append(listener)
            call()
            emulator.recorder.on_wait.remove(listener)
            return emulator.recorder.total - before

        events: list = []
        count.seen = events
        yield count


LARGE = 300_000  # bytes of a copy that is staged, and not taken along


def host(pinned: bool) -> torch.Tensor:
    values = torch.arange(LARGE / 4)
    return values.pin_memory() if pinned else values


@pytest.mark.parametrize(
    ("pinned", "non_blocking", "expected", "detail"),
    [
        (False, False, 1, "pageable"),
        (False, True, 1, "pageable"),
        (True, False, 1, "pinned"),
        (True, True, 0, ""),
    ],
)
@pytest.mark.parametrize("how", ["to", "cuda", "copy_", "other"])
def test_host_to_device(waits, pinned, non_blocking, expected, detail, how):
    source = host(pinned)
    target = torch.zeros(LARGE // 4, device="cuda")
    moves = {
        "to": lambda: source.to("cuda", non_blocking=non_blocking),
        "cuda": lambda: source.cuda(non_blocking=non_blocking),
        "copy_": lambda: target.copy_(source, non_blocking=non_blocking),
        "other": lambda: source.to(target, non_blocking=non_blocking),
    }
    assert waits(moves[how]) == expected
    assert [(site.mechanism, site.detail) for site in waits.seen] == [("h2d", detail)][:expected]


def test_device_to_host(waits):
    source = torch.arange(6.0, device="cuda")
    pageable, pinned = torch.zeros(6), torch.zeros(6).pin_memory()
    assert waits(lambda: source.cpu()) == 1
    assert waits(lambda: source.to("cpu")) == 1
    assert waits(lambda: source.type(torch.FloatTensor)) == 1
    assert waits(lambda: source.to("cpu", non_blocking=True)) == 0  # lands in pinned memory of its own
    assert waits(lambda: pageable.copy_(source)) == 1
    assert waits(lambda: pageable.copy_(source, non_blocking=True)) == 1
    assert waits(lambda: pinned.copy_(source)) == 1
    assert waits(lambda: pinned.copy_(source, non_blocking=True)) == 0
    assert {site.mechanism for site in waits.seen} == {"d2h"}


def test_what_stays_where_it_is_does_not_wait(waits):
    x = torch.ones(3, device="cuda")
    for same in (
        lambda: x.to("cuda"),
        lambda: x.cuda(),
        lambda: x.to(torch.float64),
        lambda: x.type(torch.long),
        lambda: x.half(),
        lambda: x.clone(),
        lambda: x.to("cuda:1"),
        lambda: torch.ones(3).cpu(),
        lambda: torch.zeros_like(x).copy_(x),
        lambda: x.to("cuda", torch.float16),
        lambda: torch.empty(0).cuda(),
    ):
        assert waits(same) == 0
    assert x.to("cuda") is x


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.tensor(3.0, device="cuda"), 1),
        (lambda: torch.tensor([1, 2], device="cuda"), 1),
        (lambda: torch.as_tensor(1.0, device="cuda"), 1),
        (lambda: torch.ones(1, device="cuda").new_tensor([2.0]), 1),
        (lambda: torch.full((), 3.0, device="cuda"), 0),
        (lambda: torch.zeros(2, device="cuda"), 0),
        (lambda: torch.full_like(torch.ones(2, device="cuda"), 2.0), 0),
        (lambda: torch.arange(4, device="cuda"), 0),
        (lambda: torch.randn(4, device="cuda"), 0),
        (lambda: torch.ones(2, device="cuda") * 3.0, 0),
        (lambda: torch.ones(2, device="cuda") + torch.tensor(3.0), 0),
        (lambda: torch.where(torch.ones(2, device="cuda") > 0, 1.0, 0.0), 0),
    ],
)
def test_constants(waits, make, expected):
    assert waits(make) == expected


def test_gradients_travel_back(waits):
    x = torch.ones(3, requires_grad=True)
    assert waits(lambda: (x.to("cuda") * 2).sum().backward()) == 2  # there, and the gradient back
    assert x.grad.device.type == "cpu"
    y = torch.ones(3, device="cuda:0", requires_grad=True)
    assert waits(lambda: (y.to("cuda:1") * 2).sum().backward()) == 0
    assert y.grad.device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("assign", "expected"),
    [
        ("v[:1] = 1.0", 0),  # filled
        ("m[0] = 1.0", 0),
        ("v[v > 0] = 1.0", 0),  # becomes masked_fill
        ("v[0] = torch.tensor(1.0)", 1),
        ("v[i] = torch.tensor(1.0)", 1),
        ("v[i] = v[i]", 0),
        ("v[v > 0] = v[v > 0]", 2),
        ("v.masked_fill_(v > 0, 2.0)", 0),
        ("v[[0, 1]]", 1),
        ("v[i]", 0),
        ("v[v > 0]", 1),
        ("v[torch.tensor([0, 1])]", 1),
    ],
)
def test_indexing(waits, assign, expected):
    names = {
        "torch": torch,
        "v": torch.ones(4, device="cuda"),
        "m": torch.ones(4, 4, device="cuda"),
        "i": torch.arange(2, device="cuda"),
    }
    assert waits(lambda: exec(assign, names)) == expected


@pytest.mark.parametrize(
    ("assign", "before", "since"),
    [
        ("m[0, 0] = 1.0", 1, 0),  # a single element is copied over, or filled
        ("m[i] = 1.0", 1, 0),
        ("m[i] = True", 1, 0),
        ("m[i] = numpy.int64(1)", 1, 0),
        ("m[:, i] = 1.0", 1, 0),
        ("m[i, i] = 1.0", 1, 0),  # made where it is written to
        ("m[i.int()] = 1.0", 1, 0),
        ("m[square.t()] = 1.0", 1, 0),
        ("m[True, i] = 1.0", 1, 0),
        ("m.to(torch.float8_e4m3fn)[i] = 1.0", 1, 0),
        ("m[[0, 1]] = 1.0", 2, 1),  # the list goes over
        ("m[[0, 1], i] = 1.0", 2, 1),
        ("m[numpy.array([0, 1])] = 1.0", 2, 1),
        ("m[numpy.array([0, 1]), i] = 1.0", 2, 1),
        ("m[range(2)] = 1.0", 2, 1),
        ("m[numpy.int64(1), 0] = 1.0", 1, 0),
        ("m[i.cpu()] = 1.0", 3, 2),  # so does the index, which came from there
        ("h[i] = 1.0", 1, 1),
        ("m[i[0]] = 1.0", 1, 0),  # a position on the device is read, or stays there
        ("m[i[0].int(), 0] = 1.0", 2, 0),
        ("m[i[0], i[0]] = 1.0", 3, 0),
        ("m[i[0].short()] = 1.0", 1, 1),
        ("h[i[0]] = 1.0", 1, 1),
        ("i[i[0]] = 1", 2, 1),  # it lies in what is written to
        ("m[i[0]] = v[0]", 1, 0),
        ("m[i[0]] = i[0]", 1, 1),  # of another type
        ("m[i[0]] = v", 1, 1),
        ("m[i[0]] = torch.tensor(1.0)", 1, 1),
        ("m[m > 0] = 1.0", 0, 0),
        ("m[0] = 1.0", 0, 0),
    ],
)
def test_numbers_written_through_an_index(waits, assign, before, since):
    """As ATen/TensorIndexing.h has them: 2.15 passes numbers on, and leaves positions where they are."""
    names = {
        "torch": torch,
        "numpy": numpy,
        "v": torch.ones(4, device="cuda"),
        "m": torch.ones(4, 4, device="cuda"),
        "i": torch.arange(2, device="cuda"),
        "square": torch.zeros(2, 2, dtype=torch.long, device="cuda"),
        "h": torch.ones(4, 4),
    }
    assert waits(lambda: exec(assign, names)) == (before if VERSION < (2, 15) else since)


PINNED = {"rows": (400, 300), "small": (8, 8)}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("out[:, :100].copy_(rows[:, :100], non_blocking=True)", "strided"),
        ("out[:, :100].copy_(rows[:, :100])", "strided"),
        ("rows[:, :100].copy_(out[:, :100], non_blocking=True)", "strided"),
        ("rows[:, :100].to('cuda', non_blocking=True)", "strided"),
        ("out.copy_(rows[:1], non_blocking=True)", "strided"),  # broadcast on the host
        ("out.t().copy_(rows.T.contiguous(), non_blocking=True)", "pageable"),  # contiguous() is not pinned
        ("out.view(300, 400).copy_(rows.t(), non_blocking=True)", "strided"),
        ("rows.t().to('cuda', torch.float16, non_blocking=True)", "strided"),
        ("small[:, :4].to('cuda', non_blocking=True)", None),  # small enough to be taken along
        ("rows.t().to('cuda', non_blocking=True)", None),  # lies without holes
        ("out.t().copy_(rows.t(), non_blocking=True)", None),
        ("rows[:200].to('cuda', non_blocking=True)", None),
        ("out[:, :200].copy_(rows.view(600, 200)[:400], non_blocking=True)", None),  # sorted out on the GPU
        ("rows.view(600, 200)[:400].copy_(out[:, :200], non_blocking=True)", None),
        ("out[:, :100].to('cpu', non_blocking=True)", None),
        ("out.t().to('cpu', torch.float16, non_blocking=True)", "strided"),
        ("rows.to('cuda', torch.float16, non_blocking=True)", None),
    ],
)
def test_parts_of_pinned_tensors(waits, how, expected):
    names = {"torch": torch, "out": torch.zeros(400, 300, device="cuda")}
    for name, shape in PINNED.items():
        names[name] = torch.zeros(shape).pin_memory()
    call = compile(how, "parts", "eval")
    assert waits(lambda: eval(call, names)) == (expected is not None)
    assert [site.detail for site in waits.seen] == [expected] * (expected is not None)


@pytest.mark.parametrize(("gpu", "expected"), [("v100", ["unmeasured"]), ("a100", []), ("h100", [])])
def test_where_the_gpu_decides(gpu, expected):
    decisions = []
    with Emulator(EmulatorOptions(gpu=gpus.find(gpu))) as emulator:
        emulator.recorder.on_wait.append(decisions.append)
        torch.zeros(25_000).to("cuda", non_blocking=True)
    assert [site.detail for site in decisions] == expected


def test_a_copy_carries_the_bytes_of_the_type_that_travels():
    """What may not wait is converted on the GPU, what waits on the host."""
    with Emulator() as emulator:
        host, device = torch.zeros(100_000).pin_memory(), torch.zeros(100_000, device="cuda")
        host.to("cuda", torch.float16)
        device.to("cpu", torch.float16)
        sizes = [event.bytes for event in emulator.session().events]
    assert sizes == [200_000, 400_000]


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_device_memory_is_opened_by_another_process(waits, kind):
    """As `torch.multiprocessing` hands a tensor on: nothing is copied, and both see what either writes."""
    whole = torch.arange(6.0, device="cuda:1")
    shared = kind(whole[1:4])
    handed = []
    assert waits(lambda: handed.append(reductions.reduce_tensor(shared))) == 0
    reductions.shared_cache.clear()  # what the other process does not have
    rebuild, words = handed[0]
    received = rebuild(*words)
    assert type(received) is kind
    assert received.device == torch.device("cuda", 1)
    assert received.requires_grad is shared.requires_grad
    with torch.no_grad():
        received.add_(10)
    assert whole.tolist() == [0, 11, 12, 13, 4, 5]


def test_a_model_on_the_device_goes_to_other_processes_whole(waits):
    model = torch.nn.Linear(2, 2).to("cuda:1")
    packed = bytes(reduction.ForkingPickler.dumps(model))
    again = pickle.loads(packed)
    assert {parameter.device for parameter in again.parameters()} == {torch.device("cuda", 1)}
    assert torch.equal(again.weight, model.weight)
