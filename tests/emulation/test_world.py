"""One rank of many, the others of which are not there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gapless
from gapless.analyze.estimate.collective_times import collective_time, communication_time
from gapless.emulation.distributed.store import LoneStore
from gapless.emulation.distributed.world import World
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.errors import NotEmulated, UsageError
from gapless.model.memory import ALLOC, FREE, MemoryRun
from gapless.model.programme import Programme
from gapless.torch_internals import VERSION

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"),
    pytest.mark.filterwarnings("ignore:barrier.*using the device:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*default device for the current process:UserWarning"),
]
SIZE = 4
DEVICE = torch.device("cuda")
Join = Callable[..., Emulator]


@pytest.fixture
def join() -> Iterator[Join]:
    """``join(rank, size)`` is that rank in a default group, as torchrun would start it."""
    started: list[Emulator] = []

    def join(rank: int = 0, size: int = SIZE, backend: str = "nccl", **more: Any) -> Emulator:
        emulator = Emulator(EmulatorOptions(world_size=size, rank=rank, programme=True, **more)).start()
        started.append(emulator)
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend)
        return emulator

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()
    for emulator in started:
        emulator.stop()


def collectives(emulator: Emulator) -> list[tuple[str, int, int, str]]:
    """Return (name, bytes sent, bytes in the end, group) of each recorded collective."""
    programme = emulator.recorder.programme
    assert programme is not None
    return [
        (entry.name, entry.reads, entry.writes, entry.group)
        for entry in programme.entries_since(0)
        if entry.kind == "collective"
    ]


# -- the world ---------------------------------------------------------------------------------------


def test_ranks_are_read_from_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with Emulator(EmulatorOptions(world_size=20, rank=13)) as emulator:
        variables = {
            name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        }
        assert variables == {"RANK": "13", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}
        assert torch.cuda.device_count() == 8
        environment = emulator.session().environment
        assert (environment.rank, environment.world_size) == (13, 20)
    assert "RANK" not in os.environ
    assert World.of(2, 1).node == 2
    assert World.of(64, 9, devices=4).local_rank == 1


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (4, 4), (4, -1)])
def test_a_rank_that_cannot_be_is_refused(size: int, rank: int) -> None:
    with pytest.raises(UsageError):
        World.of(size, rank)


def test_real_ranks_are_not_made_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="a launcher has started this process as one of 2 ranks"):
        World.of(4)


def test_for_a_block_of_code() -> None:
    with gapless.emulate(world_size=SIZE, rank=2) as record:
        dist.init_process_group("nccl")
        total = torch.ones(3, device="cuda")
        dist.all_reduce(total)
        torch.optim.SGD([total], 0.1).step()
        assert total.tolist() == [SIZE] * 3
        assert (dist.get_rank(), dist.get_world_size()) == (2, SIZE)
        dist.destroy_process_group()
    assert record.session.environment.rank == 2
    assert [entry.name for entry in record.session.programme.entries if entry.kind == "collective"] == [
        "all_reduce"
    ]


def test_a_script_that_says_its_rank_itself_is_believed(join: Join) -> None:
    emulator = Emulator(EmulatorOptions(world_size=SIZE, rank=1)).start()
    try:
        dist.init_process_group("nccl", init_method="tcp://10.0.0.1:1234", world_size=2, rank=0)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 2)
        assert "the script makes itself rank 0 of 2, not 1 of 4" in emulator.session().notes
    finally:
        dist.destroy_process_group()
        emulator.stop()


def _train(index: int, calls: list[Any]) -> None:
    calls.append((index, os.getpid()))


def test_spawning_ranks_runs_this_one_here() -> None:
    calls: list[Any] = []
    with Emulator(EmulatorOptions(world_size=16, rank=11)):
        torch.multiprocessing.spawn(_train, (calls,), nprocs=8)
        assert torch.multiprocessing.spawn(_train, (calls,), nprocs=8, join=False).join()
    assert calls == [(3, os.getpid())] * 2


# -- collectives: every rank brings what this one brings ----------------------------------------------


REDUCED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda all_: all_.sum(0),
    "AVG": lambda all_: all_.float().mean(0),
    "MAX": lambda all_: all_.amax(0),
    "MIN": lambda all_: all_.amin(0),
    "PRODUCT": lambda all_: all_.prod(0),
}


@pytest.mark.parametrize("rank", [0, 3])
def test_reductions_are_those_of_ranks_alike(join: Join, rank: int) -> None:
    join(rank)
    own = torch.arange(1.0, 2 * SIZE + 1)
    everyone = own.repeat(SIZE, 1)
    for name, expected in REDUCED.items():
        operation = getattr(dist.ReduceOp, name)
        value = own.to(DEVICE)
        work = dist.all_reduce(value, op=operation, async_op=True)
        assert work.wait()
        assert value.tolist() == expected(everyone).tolist(), name
        part = torch.empty(2, device=DEVICE)
        dist.reduce_scatter_tensor(part, own.to(DEVICE), op=operation)
        assert part.tolist() == expected(everyone)[2 * rank : 2 * rank + 2].tolist(), name
        functional = dist._functional_collectives.reduce_scatter_tensor(
            own.to(DEVICE), name.lower(), 0, dist.group.WORLD
        )
        assert functional.tolist() == part.tolist(), name
    bits = torch.tensor([5, 2], device=DEVICE)
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    assert bits.tolist() == [0, 0]
    scaled = own.to(DEVICE)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    assert scaled.tolist() == (2 * own).tolist()
    reduced = own.to(DEVICE)
    dist.reduce(reduced, 0)
    assert reduced.tolist() == (own * (SIZE if rank == 0 else 1)).tolist()


@pytest.mark.parametrize("rank", [0, 3])
def test_gathers_are_copies(join: Join, rank: int) -> None:
    join(rank)
    own = torch.arange(3.0, device=DEVICE)
    parts = [torch.empty(3, device=DEVICE) for _ in range(SIZE)]
    dist.all_gather(parts, own)
    whole = torch.empty(SIZE, 3, device=DEVICE)
    dist.all_gather_into_tensor(whole, own)
    assert whole.tolist() == [part.tolist() for part in parts] == [own.tolist()] * SIZE
    inside = torch.zeros(SIZE * 3, device=DEVICE)  # FSDP gathers into the tensor that holds its own part
    mine = inside[3 * rank : 3 * rank + 3]
    mine.copy_(own)
    dist.all_gather_into_tensor(inside, mine)
    assert inside.tolist() == own.tolist() * SIZE
    gathered = [torch.empty(3, device=DEVICE) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(own, gathered, dst=0)
    assert gathered is None or [part.tolist() for part in gathered] == [own.tolist()] * SIZE
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": rank}] * SIZE
    with pytest.raises(ValueError, match="world_size times input tensor size"):
        dist.all_gather_into_tensor(torch.empty(5, device=DEVICE), own)


@pytest.mark.parametrize("rank", [0, 3])
def test_exchanges_give_what_ranks_alike_would_send(join: Join, rank: int) -> None:
    join(rank)
    counts = torch.arange(1, SIZE + 1, device=DEVICE)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    assert theirs.tolist() == [rank + 1] * SIZE
    rows = torch.arange(10.0, device=DEVICE).view(10, 1).expand(10, 2).contiguous()
    out = torch.empty(SIZE * (rank + 1), 2, device=DEVICE)
    dist.all_to_all_single(out, rows, theirs.tolist(), counts.tolist())
    mine = rows.split(counts.tolist())[rank]
    assert out.tolist() == mine.repeat(SIZE, 1).tolist()
    functional = dist._functional_collectives.all_to_all_single(
        rows, theirs.tolist(), counts.tolist(), dist.group.WORLD
    )
    assert functional.tolist() == out.tolist()
    ring = [0] * SIZE
    ring[(rank + 1) % SIZE] = 10
    around = [0] * SIZE
    around[(rank - 1) % SIZE] = 10
    passed = torch.empty(10, 2, device=DEVICE)
    dist.all_to_all_single(passed, rows, around, ring)
    assert passed.tolist() == rows.tolist()


@pytest.mark.parametrize("rank", [0, 3])
def test_nothing_waits_for_a_peer(join: Join, rank: int) -> None:
    emulator = join(rank)
    peer = (rank + 1) % SIZE
    own, other = torch.ones(4, device=DEVICE), torch.full((4,), float("nan"), device=DEVICE)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, own, peer), dist.P2POp(dist.irecv, other, peer)])
    for work in works:
        work.wait()
    assert other.isfinite().all()
    numbers = torch.full((2,), 7, device=DEVICE)
    dist.recv(numbers, peer)
    assert numbers.tolist() == [0, 0]
    received: list[Any] = ["mine"]
    dist.broadcast_object_list(received, src=peer)
    assert received == ["mine"]
    dist.recv_object_list(received, src=peer)
    assert received == ["mine"]
    scattered: list[Any] = ["mine"]
    dist.scatter_object_list(scattered, list(range(SIZE)) if rank == 0 else None, src=0)
    assert scattered == [0 if rank == 0 else "mine"]
    dist.barrier()
    on_host = dist.new_group(backend="gloo")
    dist.monitored_barrier(on_host, timeout=timedelta(seconds=1))
    dist.destroy_process_group(on_host)
    said = [note for note in emulator.session().notes if "an object that is not known" in note]
    assert said
    assert all(note.startswith(f"{__file__}:") for note in said)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_mixture_of_experts_sends_the_assumed_number_of_tokens(join: Join, rank: int) -> None:
    """Without values the counts are guesses: those that are sent add up to the tokens."""
    values = join(rank, dry=True).core.values
    assert values is not None
    tokens = torch.randn(600, 512, device=DEVICE, requires_grad=True)
    values.mark(tokens, Guess())
    expert = (tokens @ torch.randn(512, 2 * SIZE, device=DEVICE)).argmax(-1)
    sent = torch.bincount(expert, minlength=2 * SIZE).view(SIZE, 2).sum(1)
    comes = torch.empty_like(sent)
    dist.all_to_all_single(comes, sent)
    out, back = sent.tolist(), comes.tolist()
    assert sum(out) == 600
    assert all(count >= 0 for count in back)
    got = torch.empty(sum(back), 512, device=DEVICE)
    dist.all_to_all_single(got, tokens.detach()[expert.argsort()], back, out)
    returned = torch.empty_like(tokens)
    dist.all_to_all_single(returned, got, out, back)
    assert returned.shape == tokens.shape


@pytest.mark.parametrize("choices", [1, 2])
def test_tokens_that_come_are_split_between_the_experts_of_a_rank(join: Join, choices: int) -> None:
    """Without values, too, the tokens that come add up over ranks and over the experts of this one."""
    values = join(1, dry=True).core.values
    assert values is not None
    experts, here = 2 * SIZE, 2
    scores = torch.randn(300, experts, device=DEVICE)
    values.mark(scores, Guess())
    chosen = scores.softmax(-1).topk(choices).indices.flatten()
    sent = torch.bincount(chosen, minlength=experts)
    comes = torch.empty_like(sent)
    dist.all_to_all_single(comes, sent)
    out, back = (counts.view(SIZE, here).sum(1).tolist() for counts in (sent, comes))
    got = torch.empty(sum(back), 16, device=DEVICE)
    dist.all_to_all_single(got, torch.randn(300 * choices, 16, device=DEVICE), back, out)
    numbers = torch.arange(here, device=DEVICE).repeat(SIZE).repeat_interleave(comes)
    parts = got[numbers.argsort()].split(torch.bincount(numbers, minlength=here).tolist())
    assert len(parts) == here
    assert sum(map(len, parts)) == len(got) == len(numbers)
    assert sum(out) == 300 * choices


def test_groups_have_their_members(join: Join) -> None:
    emulator = join(5, 8)
    mesh = dist.device_mesh.init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
    odd = dist.new_group([1, 3, 5, 7])
    assert dist.new_group([0, 1]) == dist.GroupMember.NON_GROUP_MEMBER
    value = torch.ones(8, device=DEVICE)
    for group in (mesh.get_group("dp"), mesh.get_group("tp"), odd, None):
        dist.all_reduce(value, group=group)
    assert value[0].item() == 4 * 2 * 4 * 8
    names = [group for *_, group in collectives(emulator)]
    # Versions of torch without names of groups say of the mesh's only who is in them.
    named = getattr(dist.group.WORLD, "group_desc", "") != ""
    assert names[-2:] == ["ranks 1, 3, ..., 7", "all 8 ranks"]
    if named:
        assert names[-4:-2] == ["dp: ranks 1, 3, ..., 7", "tp: ranks 4, 5"]
    else:
        assert [name.split(": ")[-1] for name in names[-4:-2]] == ["ranks 1, 3, ..., 7", "ranks 4, 5"]


def test_what_is_recorded(join: Join) -> None:
    emulator = join(1)
    value = torch.ones(8, device=DEVICE)
    dist.all_reduce(value)
    dist.all_gather_into_tensor(torch.empty(32, device=DEVICE), value)
    dist.reduce_scatter_tensor(torch.empty(2, device=DEVICE), value)
    dist.broadcast(value, 0)
    dist.broadcast(value, 1)
    dist.send(value, 3)
    dist._functional_collectives.all_gather_tensor(value, 0, dist.group.WORLD)
    everyone = f"all {SIZE} ranks"
    assert collectives(emulator) == [
        ("all_reduce", 32, 32, everyone),
        ("all_gather", 32, 128, everyone),
        ("reduce_scatter", 32, 8, everyone),
        ("broadcast", 0, 32, everyone),
        ("broadcast", 32, 0, everyone),
        ("send", 32, 0, "rank 3"),
        ("all_gather", 32, 128, everyone),
    ]
    assert emulator.recorder.total == 0


def test_it_is_recorded_whether_the_stream_waits_for_a_collective(join: Join) -> None:
    emulator = join(1)
    value = torch.ones(8, device=DEVICE)
    dist.all_reduce(value)
    work = dist.all_reduce(value, async_op=True)
    value.clone()
    work.wait()
    dist.all_reduce(value, async_op=True).wait()
    early, late = (
        dist._functional_collectives.all_gather_tensor(value, 0, dist.group.WORLD) for _ in range(2)
    )
    early + 1
    late + 1
    with torch.cuda.stream(torch.cuda.Stream()):
        dist.all_reduce(value)
    programme = emulator.recorder.programme
    assert programme is not None
    order = programme.entries_since(0)
    named = [(entry.kind, entry.number) for entry in order if entry.kind in ("collective", "await")]
    begins, ends = ("collective", 0), ("await", -1)
    gathers = [begins, begins, ("await", -2), ends]
    assert named == [begins, ends, begins, ends, begins, ends, *gathers, begins, ends]
    plain = Programme(gpu=programme.gpu, node=8)
    moving = communication_time([order], plain)
    times = [collective_time(entry, plain) for entry in order if entry.kind == "collective"]
    at_once, _, waited_for, early, _, _ = times
    assert moving.exposed == pytest.approx(at_once + waited_for + early, abs=1)
    assert moving.time == pytest.approx(sum(times), abs=1)


# -- models ------------------------------------------------------------------------------------------


def test_gradients_with_and_without_a_hook(join: Join) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    join(2)
    torch.manual_seed(0)
    alone = nn.Linear(3, 2).to(DEVICE)
    batch = torch.randn(5, 3, device=DEVICE)
    alone(batch).sum().backward()
    for hook in (None, default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        net = nn.Linear(3, 2).to(DEVICE)
        net.load_state_dict(alone.state_dict())
        model = nn.parallel.DistributedDataParallel(net, device_ids=[2])
        if hook is not None:
            model.register_comm_hook(None, hook)
        model(batch).sum().backward()
        for mine, theirs in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


def _fsdp_model(blocks: int, width: int) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(blocks))).to(DEVICE)
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def _highest(run: MemoryRun, since: int) -> int:
    """The most bytes in use at once from row `since` on, more than before it."""
    alive: dict[int, int] = {}
    totals = [0]
    for action, ident, size in zip(run.action, run.ident, run.size, strict=True):
        if action == ALLOC:
            alive[ident] = size
        elif action == FREE:
            del alive[ident]
        totals.append(sum(alive.values()))
    return max(totals[since:]) - totals[since]


@pytest.mark.skipif(
    not reports_storage_ends(), reason="torch 2.9 and older do not tell when memory is given back"
)
def test_freed_gathers_of_fsdp_are_given_back(join: Join) -> None:
    """What a block is gathered into is there twice (as one tensor, and cut into its weights) while it is
    copied, and the tensor of the block before goes when that is over: three times a block, however many
    blocks there are. Since torch 2.15 it goes before the next one is made."""
    emulator = join(0, 8, memory=True)
    width = 64
    block = width * width * 4
    for blocks in (3, 7):
        model = _fsdp_model(blocks, width)
        assert sum(parameter.to_local().nbytes for parameter in model.parameters()) == blocks * block // 8
        values = torch.randn(1, width, device=DEVICE)
        with torch.no_grad():
            model(values)  # cuBLAS takes its workspace
            model.reshard()
            gc.collect()  # the model of the turn before holds itself
            before = torch.cuda.memory_allocated()
            (run,) = emulator.session().memory
            model(values)
            model.reshard()
        assert torch.cuda.memory_allocated() == before
        (whole,) = emulator.session().memory
        most = 3 * block + values.nbytes if VERSION < (2, 15) else 2 * block + 2 * values.nbytes
        assert _highest(whole, len(run)) == most


def test_shards_have_their_size_at_any_rank(join: Join) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    join(1000, 1024)
    mesh = dist.device_mesh.init_device_mesh("cuda", (1024,))
    whole = torch.ones(2048, 3, device=DEVICE)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    assert tensor.to_local().shape == (2, 3)
    assert tensor.full_tensor().shape == (2048, 3)
    moved = distribute_tensor(torch.ones(1024, 1024, device=DEVICE), mesh, [Shard(0)]).redistribute(
        mesh, [Shard(1)]
    )
    assert moved.to_local().shape == (1024, 1)


def test_a_pipeline_asks_its_neighbours(join: Join) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    join(0)
    part = nn.Linear(4, 4).to(DEVICE)
    stage = pipelining.PipelineStage(part, 0, SIZE, DEVICE)
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=SIZE, loss_fn=lambda out, to: out.sum())
    schedule.step(torch.randn(8, 4, device=DEVICE))
    assert part.weight.grad is not None
    assert part.weight.grad.isfinite().all()


def test_a_stage_whose_input_nobody_knows_says_so(join: Join) -> None:
    from gapless import torch_internals

    pipelining = pytest.importorskip("torch.distributed.pipelining")
    if torch_internals.receive_stage_meta is None:
        pytest.skip(f"torch {torch.__version__}: stages exchange lists of objects")
    join(1)
    stage = pipelining.PipelineStage(nn.Linear(4, 4).to(DEVICE), 1, SIZE, DEVICE)
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=SIZE, loss_fn=lambda out, to: out.sum())
    with pytest.raises(NotEmulated, match=r"give PipelineStage\(input_args="):
        schedule.step()


# -- the store ---------------------------------------------------------------------------------------


def test_a_store_answers_for_ranks_that_do_the_same() -> None:
    missed: list[str] = []
    kept = LoneStore(SIZE, missed.append)  # C++ keeps only its own half
    store = dist.PrefixStore("job", kept)
    store.set("host/2", "me")
    assert store.get("host/0") == b"me"
    assert store.add("joined", 1) == SIZE
    assert int(store.get("joined")) == SIZE
    store.wait(["never"], timedelta(seconds=1))
    assert store.check(["never"])
    assert store.get("made by rank zero") == b"0"
    assert missed == ["job/made by rank zero"]
    assert store.delete_key("host/2")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=20))
def test_counters_go_up_by_what_all_ranks_add(added: list[tuple[str, int]]) -> None:
    store, totals = LoneStore(3), dict.fromkeys("abc", 0)
    for key, value in added:
        totals[key] += 3 * value
        assert store.add(key, value) == totals[key]


def test_the_next_emulation_begins_with_the_first_device() -> None:
    with Emulator(EmulatorOptions(devices=4)):
        torch.cuda.set_device(3)
    with Emulator(EmulatorOptions(devices=2)):
        assert torch.ones(1, device="cuda").device.index == 0


@pytest.mark.skipif(not reports_storage_ends(), reason="this torch does not tell when storages end")
def test_collectives_that_are_over_hold_no_memory(join: Join) -> None:
    join()
    tensor = torch.ones(1000, device=DEVICE)
    before = torch.cuda.memory_allocated()
    dist._broadcast_coalesced(dist.group.WORLD, [tensor], 1 << 20, 0)
    sent = tensor.clone()
    dist.all_reduce(sent, async_op=True).wait()
    del sent
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(not reports_storage_ends(), reason="this torch does not tell when storages end")
def test_buckets_of_ddp_are_communication(join: Join) -> None:
    emulator = join(memory=True)
    model = nn.parallel.DistributedDataParallel(nn.Linear(300, 300).cuda())
    for _ in range(3):
        model(torch.ones(2, 300, device=DEVICE)).sum().backward()
    (run,) = emulator.session().memory
    held: dict[str, int] = {}
    for action, size, place in zip(run.action, run.size, run.place, strict=True):
        if action == ALLOC:
            held[run.places[place].kind] = held.get(run.places[place].kind, 0) + size
    assert held["communication"] >= 4 * 300 * 301
