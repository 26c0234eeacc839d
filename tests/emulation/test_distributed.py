"""Process groups on the emulated device: NCCL's manners over gloo's transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
import torch.distributed as dist
from torch import nn

from gapless.emulation.distributed.process_groups import local_world_size, meet
from gapless.emulation.emulator import Emulator
from gapless.emulation.kernels import norm
from gapless.emulation.options import EmulatorOptions
from gapless.errors import NotEmulated, UsageError
from gapless.torch_internals import VERSION

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"),
    pytest.mark.filterwarnings("ignore:barrier.*using the device:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*default device for the current process:UserWarning"),
]
HERE = Path(__file__).parent
HOST_ERROR = "No backend type associated with device type cpu"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(EmulatorOptions(devices=2)) as emulator:
        yield emulator


@pytest.fixture
def join(emulator: Emulator, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """``join(backend, **more)`` makes a default group of one rank."""

    def join(backend: str | None = "nccl", **more: Any) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1, **more)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


def waits(emulator: Emulator) -> list[tuple[str, str, int]]:
    """(operator, mechanism, waits) of everything recorded so far, in order."""
    session = emulator.session()
    return [
        (session.sites[event.site].operator, session.sites[event.site].mechanism, event.waits)
        for event in session.events
    ]


# -- what the group says of itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "name", "carries"),
    [
        ("nccl", "nccl", ["cuda"]),
        (None, "undefined", ["cuda"]),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", ["cpu", "cuda"]),
        ("cuda:nccl,cpu:gloo", "cuda:nccl,cpu:gloo", ["cpu", "cuda"]),
    ],
)
def test_groups_say_what_was_asked_for(
    join: Callable[..., None], backend: Any, name: str, carries: list[str]
) -> None:
    join(backend)
    assert dist.get_backend() == name
    assert dist.get_pg_count() == 1
    kinds = {device.type for device in dist.group.WORLD._device_types}
    assert kinds.intersection(("cpu", "cuda")) == set(carries)


def test_nccl_is_there_only_under_emulation() -> None:
    before = dist.is_nccl_available()
    with Emulator():
        assert dist.is_nccl_available()
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        assert options.is_high_priority_stream
    assert dist.is_nccl_available() == before


def test_a_bound_device(join: Callable[..., None]) -> None:
    join("nccl", device_id=torch.device("cuda", 1))
    assert dist.group.WORLD.bound_device_id == torch.device("cuda", 1)
    assert dist.get_backend(dist.split_group(split_ranks=[[0]])) == "nccl"


def test_options_of_nccl_are_taken(join: Callable[..., None]) -> None:
    join("nccl", pg_options=dist.ProcessGroupNCCL.Options())
    value = torch.ones(2, device="cuda")
    dist.all_reduce(value)
    assert value.tolist() == [1.0, 1.0]


# -- what travels ----------------------------------------------------------------------------------


def test_host_tensors_cannot_travel_with_nccl_alone(join: Callable[..., None], emulator: Emulator) -> None:
    join("nccl")
    host = torch.ones(2)
    for call in (
        lambda: dist.all_reduce(host),
        lambda: dist.broadcast(host, 0),
        lambda: dist.all_gather([torch.zeros(2)], host),
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), host),
        lambda: dist.all_gather([torch.zeros(2, device="cuda")], host),
        lambda: dist.all_reduce(host.pin_memory()),
        lambda: dist._functional_collectives.all_reduce(host, "sum", dist.group.WORLD),
        lambda: dist.group.WORLD._get_backend(torch.device("cpu")),
    ):
        with pytest.raises(RuntimeError, match=HOST_ERROR):
            call()
    assert waits(emulator) == []


def test_host_tensors_travel_with_gloo_beside_nccl(join: Callable[..., None], emulator: Emulator) -> None:
    join("cpu:gloo,cuda:nccl")
    for value in (torch.ones(2), torch.ones(2, device="cuda")):
        device = value.device
        dist.all_reduce(value)
        assert value.device == device
    assert waits(emulator) == []


def test_collectives_leave_their_results_on_the_device_and_do_not_wait(
    join: Callable[..., None], emulator: Emulator
) -> None:
    join("nccl")
    device = torch.device("cuda", 1)
    value = torch.arange(4.0, device=device)
    gathered = torch.empty(1, 4, device=device)  # NCCL counts elements and does not ask for the shape
    dist.all_gather_into_tensor(gathered, value)
    scattered = torch.empty(4, device=device)
    dist.reduce_scatter_tensor(scattered, value.view(1, 4), op=dist._make_nccl_premul_sum(0.5))
    work = dist.all_reduce(value, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    functional = dist._functional_collectives.all_gather_tensor(value, 0, dist.group.WORLD) + 1
    exchanged = [torch.empty(4, device=device)]
    dist.all_to_all(exchanged, [value])
    assert waits(emulator) == []
    for result in (gathered, scattered, value, functional, *exchanged):
        assert result.device == device
    assert gathered.tolist() == [[0, 1, 2, 3]]
    assert scattered.tolist() == [0, 0.5, 1, 1.5]
    assert functional.tolist() == [1, 2, 3, 4]
    assert exchanged[0].tolist() == [0, 1, 2, 3]


def test_gradients_through_a_collective(join: Callable[..., None], emulator: Emulator) -> None:
    join("nccl")
    value = torch.ones(2, device="cuda", requires_grad=True)
    from torch.distributed.nn.functional import all_reduce

    all_reduce(value).sum().backward()
    assert value.grad is not None
    assert value.grad.is_cuda
    assert waits(emulator) == []


def test_nccl_receives_from_somebody_only(join: Callable[..., None]) -> None:
    join("nccl")
    with pytest.raises(RuntimeError, match="Backend nccl does not support recvAnysource"):
        dist.recv(torch.zeros(1, device="cuda"))
    words = "is only implemented for GLOO backend" if VERSION < (2, 14) else "requires a group with a CPU"
    with pytest.raises(ValueError, match=f"monitored_barrier {words}"):
        dist.monitored_barrier()


# -- what waits ------------------------------------------------------------------------------------


def test_a_barrier_waits(join: Callable[..., None], emulator: Emulator) -> None:
    join("nccl")
    dist.barrier()
    dist.barrier(device_ids=[0])
    assert waits(emulator) == [("cudaStreamSynchronize", "explicit", 1)] * 2
    work = dist.barrier(async_op=True)
    assert len(waits(emulator)) == 2
    work.wait()
    # What is NCCL since torch 2.15 leaves that to the stream.
    assert len(waits(emulator)) == (3 if VERSION < (2, 15) else 2)
    site = emulator.session().sites[0]
    assert site.call == "torch.distributed.barrier"
    assert site.line is not None
    assert site.line.file == __file__


@pytest.mark.skipif(VERSION < (2, 15), reason=f"torch 2.{VERSION[1]} has one implementation of NCCL")
def test_a_barrier_of_the_nccl_before_waits_later(join: Callable[..., None], emulator: Emulator) -> None:
    join("nccl-legacy")
    work = dist.barrier(async_op=True)
    assert not waits(emulator)
    work.wait()
    assert waits(emulator) == [("cudaStreamSynchronize", "explicit", 1)]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:nccl"])
def test_a_barrier_of_gloo_does_not_wait_for_the_device(
    join: Callable[..., None], emulator: Emulator, backend: str
) -> None:
    join(backend)
    dist.barrier()
    # Since torch 2.15 NCCL binds a group to its device, and the group's barrier is then NCCL's.
    assert len(waits(emulator)) == ("nccl" in backend and VERSION >= (2, 15))


def test_a_gather_into_one_tensor(join: Callable[..., None], emulator: Emulator) -> None:
    if not hasattr(dist, "gather_single"):
        pytest.skip(f"torch 2.{VERSION[1]} lacks gather_single, which is there since 2.14")
    join("nccl")
    whole = torch.zeros(3, device="cuda")
    dist.gather_single(torch.arange(3.0, device="cuda"), whole, dst=0)
    assert not waits(emulator)
    assert whole.is_cuda
    assert whole.tolist() == [0.0, 1.0, 2.0]


def test_gloo_waits_for_device_tensors(join: Callable[..., None], emulator: Emulator) -> None:
    join("gloo")
    dist.all_reduce(torch.ones(2))
    assert waits(emulator) == []
    value = torch.ones(2, device="cuda")
    dist.all_reduce(value)
    assert waits(emulator) == [("c10d::allreduce_", "values", 1)]
    assert value.is_cuda


def test_objects_pass_through_the_host(join: Callable[..., None], emulator: Emulator) -> None:
    join("nccl")
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"loss": 1.5})
    assert gathered == [{"loss": 1.5}]
    # The bytes and their number go over; the greatest number, the bytes and each rank's number come back.
    assert [mechanism for _, mechanism, _ in waits(emulator)] == ["h2d", "h2d", "read", "d2h", "read"]


# -- many ranks that are not there -----------------------------------------------------------------


@pytest.fixture
def one_of_four(emulator: Emulator) -> Iterator[Emulator]:
    """Return the first rank's group of four ranks with the "fake" backend."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield emulator
    dist.destroy_process_group()


def test_gradients_of_ranks_that_are_not_there(one_of_four: Emulator) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(), device_ids=[0])
    for _ in range(2):
        model(torch.ones(1, 2, device="cuda")).sum().backward()
    assert all(parameter.grad.device == torch.device("cuda", 0) for parameter in model.parameters())


def test_each_rank_draws_its_own_part_of_a_sharded_tensor(one_of_four: Emulator) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, ones

    mesh = init_device_mesh("cuda", (4,))
    sharded = ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state().view(torch.int64)
    drawn = torch.nn.init.normal_(sharded)
    assert drawn.to_local().device.type == "cuda"
    assert drawn.to_local().std() > 0
    after = torch.cuda.get_rng_state().view(torch.int64)
    assert (after - state).tolist() == [0, 32]  # as many numbers as the whole tensor has
    dropped = torch.nn.functional.dropout(ones(4, device_mesh=mesh, placements=[Replicate()]), 0.5)
    assert dropped.to_local().device.type == "cuda"


# -- DistributedDataParallel -----------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.second, self.spare = nn.Linear(8, 2), nn.Linear(8, 2)
        self.use_spare = True

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(values))
        return self.second(hidden) + self.spare(hidden) if self.use_spare else self.second(hidden)


def train(model: nn.Module, steps: int = 2, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
        optimizer.step()


def test_construction_waits_as_the_check_of_shapes_does(
    join: Callable[..., None], emulator: Emulator
) -> None:
    join("nccl")
    net = Net().cuda()
    before = len(waits(emulator))
    nn.parallel.DistributedDataParallel(net, device_ids=[0])
    name = "c10d::verify_params_across_processes"
    assert waits(emulator)[before:] == [(name, "h2d", 2), (name, "read", 1), (name, "d2h", 1)]
    (note,) = emulator.session().notes
    assert note.startswith("DistributedDataParallel also waits for its own timing events")


@pytest.mark.filterwarnings("ignore:.*unused parameters:UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.0001},
    ],
)
def test_training_with_ddp_does_not_wait(
    join: Callable[..., None], emulator: Emulator, options: dict[str, Any]
) -> None:
    join("nccl")
    torch.manual_seed(0)
    net = Net().cuda()
    alone = Net().cuda()
    alone.load_state_dict(net.state_dict())
    model = nn.parallel.DistributedDataParallel(net, device_ids=[0], **options)
    before = len(waits(emulator))
    for module in (model, alone):
        torch.manual_seed(1)
        train(module, foreach=True)
    assert waits(emulator)[before:] == []
    for mine, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None
        assert mine.grad.is_cuda
        torch.testing.assert_close(mine, theirs)


def test_parameters_that_are_not_used_make_backward_wait(
    join: Callable[..., None], emulator: Emulator
) -> None:
    join("nccl")
    net = Net().cuda()
    net.use_spare = False
    model = nn.parallel.DistributedDataParallel(net, device_ids=[0], find_unused_parameters=True)
    before = len(waits(emulator))
    train(model, steps=3)
    assert waits(emulator)[before:] == [("aten::copy_", "d2h", 1)] * 3


def test_hooks_run_where_the_device_is_seen(join: Callable[..., None], emulator: Emulator) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    join("nccl")
    model = nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[0])
    devices = []

    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = default_hooks.fp16_compress_hook(None, bucket)

        def look(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            devices.append((done.value().device.type, torch.zeros_like(done.value()).device.type))
            return done.value()

        return future.then(look)

    hook.__annotations__.clear()  # DDP compares them as objects, and here they are strings
    model.register_comm_hook(None, hook)
    before = len(waits(emulator))
    train(model)
    assert set(devices) == {("cuda", "cuda")}
    assert waits(emulator)[before:] == []


def test_data_parallel_over_two_devices(emulator: Emulator) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 2).cuda()
    values = torch.randn(6, 4, device="cuda")
    devices = []
    net.register_forward_hook(lambda module, inputs, out: devices.append(out.device))
    out = nn.DataParallel(net)(values)
    out.sum().backward()
    assert sorted(device.index for device in devices) == [0, 1]
    assert out.device == torch.device("cuda", 0)
    torch.testing.assert_close(out, net(values))


def test_fully_shard(join: Callable[..., None], emulator: Emulator) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join("nccl")
    mesh = init_device_mesh("cuda", (1,))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    before = len(waits(emulator))
    train(model)
    assert waits(emulator)[before:] == []
    assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}


def test_distributed_tensors_say_where_they_are(join: Callable[..., None], emulator: Emulator) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    join("nccl")
    values = torch.arange(8.0, device="cuda").view(4, 2)
    tensor = distribute_tensor(values, init_device_mesh("cuda", (1,)), [Shard(0)])
    doubled = tensor * 2
    assert tensor.device == doubled.device == doubled.to_local().device == torch.device("cuda", 0)
    assert waits(emulator) == []
    assert doubled.sum().full_tensor().item() == 56


# -- kernels of SyncBatchNorm ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 4, 4)])
def test_synchronized_statistics_equal_those_of_the_whole_batch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    whole = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(3, dtype=torch.float64, requires_grad=True)
    bias = torch.rand(3, dtype=torch.float64, requires_grad=True)
    eps, momentum, parts = 1e-5, 0.1, (whole.detach()[:2], whole.detach()[2:])
    expected_running = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    running = [statistic.clone() for statistic in expected_running]
    expected = nn.functional.batch_norm(whole, *expected_running, weight, bias, True, momentum, eps)
    gradient = torch.randn(shape, dtype=torch.float64)
    expected.backward(gradient)

    stats = [norm._stats(part, eps) for part in parts]
    counts = torch.tensor([part.numel() // 3 for part in parts], dtype=torch.float64)
    mean, invstd = norm._gather_stats(
        parts[0],
        *(torch.stack(column) for column in zip(*stats, strict=True)),
        *running,
        momentum,
        eps,
        counts,
    )
    affine = (weight.detach(), bias.detach())
    out = torch.cat([norm._elemt(part, *affine, mean, invstd, eps) for part in parts])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(running, expected_running)

    gradients = (gradient[:2], gradient[2:])
    reduced = [
        norm._backward_reduce(g, part, mean, invstd, affine[0], True, True, True)
        for g, part in zip(gradients, parts, strict=True)
    ]
    sum_dy, sum_dy_xmu = reduced[0][0] + reduced[1][0], reduced[0][1] + reduced[1][1]
    grad = [
        norm._backward_elemt(g, part, mean, invstd, affine[0], sum_dy, sum_dy_xmu, counts)
        for g, part in zip(gradients, parts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(grad), whole.grad)
    torch.testing.assert_close(reduced[0][2] + reduced[1][2], weight.grad)
    torch.testing.assert_close(reduced[0][3] + reduced[1][3], bias.grad)


# -- how many devices, and leaving together --------------------------------------------------------


@pytest.mark.parametrize(("world_size", "ranks"), [("4", 4), ("0", 1), ("many", 1), (None, 1)])
def test_as_many_devices_as_ranks_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, world_size: str | None, ranks: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", world_size)
    assert local_world_size() == ranks
    assert Emulator().devices == ranks
    assert Emulator(EmulatorOptions(devices=3)).devices == 3
    with pytest.raises(UsageError):
        Emulator(EmulatorOptions(devices=0))


def test_meeting_is_over_at_once_without_a_group_and_alone(join: Callable[..., None]) -> None:
    assert meet(seconds=0)
    join("nccl")
    assert meet(seconds=0)


def test_a_rank_that_does_not_come_is_not_waited_for(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    assert not meet(seconds=0)
    assert meet(seconds=0)  # the second rank finds the first one's mark


def test_a_torch_without_gloo_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from gapless.emulation.distributed.nccl import stand_in

    monkeypatch.delattr(torch._C._distributed_c10d, "ProcessGroupGloo")
    with pytest.raises(NotEmulated, match="gloo"):
        stand_in()


# -- two ranks -------------------------------------------------------------------------------------


def test_two_ranks(tmp_path: Path) -> None:
    for done in fork_server.ranks(2, (str(HERE / "two_ranks.py"), str(tmp_path)), tmp_path):
        assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["devices"] == second["devices"] == 2
    assert (first["device"], second["device"]) == ("cuda:0", "cuda:1")
    for name, expected in {
        "uneven": [[0.0], [1.0, 1.0]],
        "sent": [1.0, 1.0],
        "objects": [0, 1],
        "coalesced": [[1.0], [1.0, 1.0]],
        "metric": 0.5,
        "host_metric": f"RuntimeError: {HOST_ERROR}",
    }.items():
        assert first[name] == expected, name
        if name != "sent":
            assert second[name] == expected, name
    assert second["sent"] == [0.0, 0.0]
    assert first["parameters"] == pytest.approx(second["parameters"])
    assert first["parameters"] == pytest.approx(first["whole_batch"], rel=1e-4)
    assert first["norm_waits"] == second["norm_waits"] == [["aten::index", "size", 1]] * 3
    assert first["ddp_waits"] == second["ddp_waits"] == []
