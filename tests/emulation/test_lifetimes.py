"""Nothing of the script's is kept alive: it ends under emulation when it ends without."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from training_objects import KINDS, Made, Plain, batch, network, train

import gapless
from gapless.capture.profiling_steps import StepMarkHooks
from gapless.emulation.compiled.signatures import Rebuilder
from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions

pytestmark = [
    pytest.mark.skipif(not reports_storage_ends(), reason="this torch does not tell when storages end"),
    pytest.mark.filterwarnings("ignore"),
]
AT_ONCE, COLLECTED, STAYS = range(3)


@contextmanager
def all_streams() -> Iterator[None]:
    with Emulator() as emulator:
        emulator.core.races.follow_all()
        yield


@contextmanager
def marked() -> Iterator[None]:
    marks = StepMarkHooks(lambda mark: None)
    marks.start()
    yield
    marks.stop()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "values": Emulator,
    "memory": lambda: Emulator(EmulatorOptions(programme=True, memory=True)),
    "dry": lambda: Emulator(EmulatorOptions(programme=True, memory=True, dry=True)),
    "may become dry": lambda: Emulator(EmulatorOptions(programme=True, memory=True, dry=None)),
    "graphs": lambda: Emulator(EmulatorOptions(programme=True, graphs=True)),
    "races": all_streams,
    "compile pass": lambda: Emulator(EmulatorOptions(compiled=True)),
    "late copies": lambda: Emulator(EmulatorOptions(late_copies=True)),
    "gapless.emulate": gapless.emulate,
    "profile": marked,  # what `gapless profile` adds to a run; its device is the CPU here
}


def watch(objects: Made) -> dict[str, weakref.ref[Any]]:
    """Return weak references to the objects and to the storages of tensors."""
    alive = {name: weakref.ref(value) for name, value in objects.items()}
    for name, value in objects.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            alive[f"storage of {name}"] = weakref.ref(value.untyped_storage())
    return alive


def ends(make: Callable[[str], Made], device: str) -> dict[str, int]:
    """When each of the objects that `make` returns ends, and each storage of a tensor."""
    gc.collect()
    gc.disable()
    try:
        objects = make(device)
        alive = watch(objects)
        objects.clear()
        at_once = {name for name, reference in alive.items() if reference() is None}
        gc.collect()
        collected = {name for name, reference in alive.items() if reference() is None}
    finally:
        gc.enable()
    return {name: AT_ONCE if name in at_once else COLLECTED if name in collected else STAYS for name in alive}


@pytest.fixture(scope="module")
def plain() -> dict[str, dict[str, int]]:
    """When objects end in plain PyTorch on the CPU; the first time fills torch's own caches."""
    return {name: [ends(make, "cpu") for _ in range(2)][-1] for name, make in KINDS.items()}


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest, plain: dict[str, dict[str, int]]) -> Iterator[str]:
    with MODES[request.param]():
        device = "cpu" if request.param == "profile" else "cuda"
        torch.zeros(1, device=device)
        yield device


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_without_emulation_ends_with_it(
    kind: str, mode: str, plain: dict[str, dict[str, int]]
) -> None:
    result = ends(KINDS[kind], mode)
    assert result.keys() == plain[kind].keys()
    assert {name: when for name, when in result.items() if when > plain[kind][name]} == {}


@pytest.mark.parametrize("name", [name for name in MODES if name != "profile"])
def test_models_one_after_the_other_take_the_memory_of_one(name: str) -> None:
    """As in cross-validation: each fold makes its model and its optimizer, and drops them."""
    allocated, peaks = [], []
    with MODES[name]():
        for _ in range(4):
            model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            loss = model(torch.ones(8, 256, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            del model, optimizer, loss
            allocated.append(torch.cuda.memory_allocated())
            peaks.append(torch.cuda.max_memory_allocated())
    assert len(set(allocated)) == 1
    assert peaks[-1] <= 1.1 * peaks[0]


# -- over several ranks -----------------------------------------------------------------------------------


def data_parallel(device: str) -> Made:
    model = nn.parallel.DistributedDataParallel(network(device))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    return {"model": model, "loss": train(model, optimizer, device), "inner": model.module}


def fully_sharded(device: str) -> Made:
    from torch.distributed.fsdp import fully_shard

    model = network(device)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh(device, (1,)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    return {"model": model, "loss": train(model, optimizer, device), "weight": model[0].weight}


class Circle:
    """An object that refers to itself, like the first FSDP's: it ends when it is collected."""

    def __init__(self) -> None:
        self.itself = self


def fully_sharded_as_before(device: str) -> Made:
    """It refuses to run on a CPU."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if device == "cpu":
        return {name: Circle() for name in ("model", "inner", "handle", "optimizer")}
    model = FullyShardedDataParallel(network(device), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    train(model, optimizer, device)
    return {"model": model, "inner": model.module, "handle": model._handle, "optimizer": optimizer}


def hooked(device: str) -> Made:
    """Gradients are joined by a hook of the script's own."""
    model = nn.parallel.DistributedDataParallel(network(device), gradient_as_bucket_view=True)

    def scaled(future: Any) -> torch.Tensor:
        return future.value()[0] / 2  # type: ignore[no-any-return]

    model.register_comm_hook(
        None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(scaled)
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    return {"model": model, "loss": train(model, optimizer, device), "inner": model.module}


def distributed_tensors(device: str) -> Made:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh(device, (1,))
    x = distribute_tensor(batch(device), mesh, [Shard(0)])
    return {"x": x, "y": x + 1, "local": x.to_local()}


def collectives(device: str) -> Made:
    x = batch(device)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    return {"x": x, "part": parts[0]}


OVER_RANKS = (
    data_parallel, hooked, fully_sharded, fully_sharded_as_before, distributed_tensors, collectives,
)  # fmt: skip


def of_ranks(device: str, folder: Path) -> dict[str, dict[str, int]]:
    store = dist.FileStore(str(folder / device), 1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    try:
        return {make.__name__: [ends(make, device) for _ in range(2)][-1] for make in OVER_RANKS}
    finally:
        dist.destroy_process_group()


TRIES = 3
"""Tries until all ends in time: gloo's threads may hold what they sent longer; a leak stays each time."""


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")
@pytest.mark.parametrize(
    "options", [{}, {"programme": True, "memory": True, "dry": True}], ids=["values", "dry"]
)
def test_what_several_ranks_share_ends_too(options: dict[str, Any], tmp_path: Path) -> None:
    plain = of_ranks("cpu", tmp_path)
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with Emulator(EmulatorOptions(devices=1, **options)):
            result = of_ranks("cuda", folder)
        later = {
            (kind, name): when
            for kind, each in result.items()
            for name, when in each.items()
            if when > plain[kind][name]
        }
        if not later:
            break
    assert later == {}


# -- what the compile pass is for ---------------------------------------------------------------------------


def compiles(device: str) -> Made:
    model = network(device)
    fast = torch.compile(model)
    return {"model": model, "out": fast(batch(device))}


def test_of_what_is_compiled_at_one_place_the_last_is_copied_for_the_compiler() -> None:
    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        for width in range(2, 6):
            model = nn.Sequential(nn.Linear(4, width), nn.ReLU()).cuda()
            compiles_again(model)
            alive = weakref.ref(model)
            del model
            assert alive() is None
        (target,) = emulator.compiled.targets
        assert [call.number for call in target.kept] == [1]
        assert target.inner.__self__[0].weight.shape == (5, 4)
        assert type(target.inner.__self__) is nn.Sequential


def compiles_again(model: nn.Module) -> None:
    torch.compile(model)(batch("cuda"))


def test_copies_for_the_compiler_take_no_memory_of_the_gpu() -> None:
    with Emulator(EmulatorOptions(memory=True, compiled=True)) as emulator:
        before = torch.cuda.memory_allocated()
        assert ends(compiles, "cuda") == {"model": AT_ONCE, "out": AT_ONCE, "storage of out": AT_ONCE}
        assert torch.cuda.memory_allocated() == before
        assert len(emulator.compiled.kept) == 1


class Trainer:
    """An object that holds its compiled code, in a reference cycle."""

    def __init__(self) -> None:
        self.model, self.scale = network("cuda"), 2.0
        self.step = torch.compile(self.loss)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).mean() * self.scale


def test_what_holds_its_compiled_function_ends_when_it_is_collected() -> None:
    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        trainer = Trainer()
        trainer.step(batch("cuda"))
        alive = weakref.ref(trainer), weakref.ref(trainer.model)
        del trainer
        gc.collect()
        assert [reference() for reference in alive] == [None, None]
        (target,) = emulator.compiled.targets
        copy = target.inner.__self__
        assert (type(copy), copy.scale) == (Trainer, 2.0)
        assert target.hidden is not None
        assert target.hidden.roots == [copy.model]


def test_what_a_compiled_function_is_given_ends_before_the_function() -> None:
    def loss(model: nn.Module, x: torch.Tensor, settings: Any) -> torch.Tensor:
        return model(x).mean() * settings.scale

    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        step = torch.compile(loss)
        model, settings = network("cuda"), Plain()
        settings.scale = 3.0
        step(model, batch("cuda"), settings)
        alive = weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(settings)
        del model, settings
        assert [reference() for reference in alive] == [None, None, None]
        (call,) = emulator.compiled.kept
        model, _, settings = map(Rebuilder(lambda tensor, index: None, values=True), call.args)
        assert (model[0].weight.shape, settings.scale) == ((8, 4), 3.0)


def test_what_reaches_something_that_cannot_be_copied_is_not_copied() -> None:
    with Emulator(EmulatorOptions(compiled=True)) as emulator:
        lines = (line for line in "ab")
        torch.compile(lambda x: (x, lines)[0] + 1)(batch("cuda"))
        assert not emulator.compiled.targets
        assert emulator.compiled.uncopied == "a generator"
