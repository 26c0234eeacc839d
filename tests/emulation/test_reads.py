"""Values read on the host: one wait each, at whatever spelling, and none for host tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

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
    values = make(x)
    assert emulator.recorder.total - before == waits
    assert values.is_cuda == (name != "on the host")


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


class Wrapped(torch.Tensor):
    """A tensor around another one, whose operators first call `look` on the inner tensor."""

    look: Callable[[torch.Tensor], object]
    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor, look: Callable[[torch.Tensor], object]) -> Wrapped:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, device=inside.device
        )  # type: ignore[attr-defined]
        wrapper.inside, wrapper.look = inside, look
        return wrapper  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args[0].look(args[0].inside)
        return func(
            *(argument.inside if isinstance(argument, Wrapped) else argument for argument in args),
            **(kwargs or {}),
        )


class Asking(torch.Tensor):
    """A tensor with its own ``__torch_function__``."""

    look: Callable[[torch.Tensor], object]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.neg:
            with torch._C.DisableTorchFunctionSubclass():
                plain = args[0].as_subclass(torch.Tensor)
            args[0].look(plain)
            return plain.neg()
        return super().__torch_function__(func, types, args, kwargs)


_bodies: list[Callable[[torch.Tensor], object]] = []


def _looks(x: torch.Tensor) -> torch.Tensor:
    _bodies[-1](x)
    return x.clone()


_looks.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
_operator = torch.library.custom_op("reads_of_a_body::looks", _looks, mutates_args=())


def _custom(look: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    _bodies.append(look)
    _operator(x)
    _bodies.pop()


def _disabled(look: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    with torch._C.DisableTorchFunction():
        look(x)


def _subclasses_disabled(look: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        look(x)


def _dispatched(look: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    Wrapped(x, look).neg()


def _query(look: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    tensor = x.as_subclass(Asking)
    tensor.look = look
    tensor.neg()


WHERE: dict[str, Callable[[Callable[[torch.Tensor], object], torch.Tensor], None]] = {
    "the body of a custom operator": _custom,
    "__torch_dispatch__": _dispatched,
    "__torch_function__": _query,
    "torch functions disabled": _disabled,
    "subclasses disabled": _subclasses_disabled,
}
MOVES: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to by name": lambda x: x.to(device=torch.device("cpu")),
    "to another": lambda x: x.to(torch.zeros(1)),
    "type": lambda x: x.type("torch.FloatTensor"),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "to the device": lambda x: torch.zeros(2).to("cuda"),
    "cuda": lambda x: torch.zeros(2).cuda(),
    "type_as from the host": lambda x: torch.zeros(2).type_as(x),
    "values": lambda x: torch.tensor([1.0, 2.0], device="cuda"),
    "values like another": lambda x: x.new_tensor([1.0, 2.0]),
}


def _counts(emulator: Emulator, runs: Callable[[Any, torch.Tensor], None]) -> dict[str, int]:
    x = torch.full((2, 2), 0.5, device="cuda")
    counts = {}
    for name, call in {**READS, **{name: call for name, (call, _) in LISTS.items()}, **MOVES}.items():
        before = emulator.recorder.total
        runs(call, x)
        counts[name] = emulator.recorder.total - before
    return counts


@pytest.mark.parametrize("where", WHERE)
def test_what_is_asked_where_no_function_mode_is(where: str) -> None:
    with Emulator(EmulatorOptions("H100")) as emulator:
        plainly = _counts(emulator, lambda call, x: call(x))
        assert all(waits for name, waits in plainly.items() if name in READS)
        assert _counts(emulator, WHERE[where]) == plainly


def test_a_device_tensor_is_no_array_there_either() -> None:
    with Emulator(EmulatorOptions("H100")), torch._C.DisableTorchFunction():
        x = torch.ones(2).cuda()
        for call in (x.numpy, x.__array__):
            with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
                call()


def test_the_parts_of_a_jagged_tensor_are_found_with_a_wait() -> None:
    """Its offsets are read: 14 of 14 such calls in profiles of real GPUs wait."""
    with Emulator(EmulatorOptions("H100")) as emulator:
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).cuda()
        before = emulator.recorder.total
        parts = nested.unbind()
        assert [tuple(part.shape) for part in parts] == [(2, 3), (4, 3)]
        assert emulator.recorder.total - before >= 1
