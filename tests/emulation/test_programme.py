"""What a run on the emulated device asks for: operators, waits, copies and streams, in order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gapless.emulation.emulator import Emulator
from gapless.emulation.memory.requests import reports_storage_ends
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.recording import programme, segments
from gapless.emulation.recording.programme import ProgrammeRecorder
from gapless.emulation.recording.segments import Segments
from gapless.model import gpus
from gapless.model.memory import EMPTY
from gapless.model.programme import Entry
from gapless.torch_internals import VERSION


def record_steps(run, steps: int = 1, prepare=lambda: None, marked: bool = True):
    """Run ``run()`` `steps` times, with a mark after each if `marked`; return the last segment's entries and
    the programme."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        prepared = prepare()
        for _ in range(steps):
            run(prepared) if prepared is not None else run()
            if marked:
                emulator.recorder.mark("user", "step")
        programme_kept = emulator.session().programme
    assert programme_kept is not None
    return [
        programme_kept.entries[position]
        for position in programme_kept.bodies[programme_kept.segments[-1].body]
    ], programme_kept


def names(entries: list[Entry]) -> list[str]:
    return [
        entry.name.removeprefix("aten::") if entry.kind == "operator" else entry.kind for entry in entries
    ]


def test_nothing_is_recorded_unasked():
    with Emulator() as emulator:
        torch.ones(3, device="cuda")
        emulator.recorder.mark("user", "step")
        assert emulator.session().programme is None


def test_a_training_step_in_its_order():
    def prepare():
        model = nn.Linear(4, 4).cuda()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def run(prepared):
        model, optimizer = prepared
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        loss.item()

    entries, whole = record_steps(run, 3, prepare, marked=False)
    assert names(entries)[:3] == ["wait", "ones", "addmm"]  # of the step before: its optimizer ended it
    forward = [entry.name for entry in entries if not entry.backward and not entry.optimizer]
    backward = [entry.name for entry in entries if entry.backward]
    assert "aten::addmm" in forward
    assert "aten::mm" in backward
    update, addition = (entry for entry in entries if entry.optimizer)
    assert (update.kind, update.name, update.detail) == ("update", "SGD", "foreach")
    assert (update.number, update.tensors) == (1, 2)
    assert addition.name == "aten::_foreach_add_"
    assert entries[0].mechanism == "read"
    assert whole.gpu.name == gpus.DEFAULT.name
    assert whole.gpu.bandwidth == gpus.DEFAULT.bandwidth


def test_shapes_bytes_and_types():
    (entry,), _ = record_steps(
        lambda matrices: torch.mm(*matrices),
        prepare=lambda: (
            torch.ones(2, 3, device="cuda", dtype=torch.float16),
            torch.ones(3, 5, device="cuda", dtype=torch.float16),
        ),
        steps=2,
    )
    assert entry.inputs == ((2, 3), (3, 5))
    assert entry.outputs == ((2, 5),)
    assert entry.dtype == "float16"
    assert (entry.reads, entry.writes) == (2 * (6 + 15), 2 * 10)


def test_views_and_empty_tensors_launch_nothing():
    def run(x):
        x.view(6).t().unsqueeze(0).expand(4, 6).detach()
        torch.empty(3, device="cuda")

    entries, _ = record_steps(run, 2, lambda: torch.ones(2, 3, device="cuda"))
    assert entries == []


def test_host_tensors_launch_nothing():
    entries, _ = record_steps(lambda: torch.ones(3) + 1, 2)
    assert entries == []


def test_an_expanded_tensor_reads_the_memory_there_is():
    (entry,), _ = record_steps(lambda x: x.expand(1000, 4).sum(), 2, lambda: torch.ones(1, 4, device="cuda"))
    assert entry.reads == 16


def test_an_operator_is_recorded_after_its_input_copy_and_before_its_size_wait():
    places = torch.tensor([0, 2])
    entries, _ = record_steps(lambda x: x.nonzero(), 2, lambda: torch.ones(3, device="cuda"))
    assert names(entries) == ["nonzero", "wait"]
    entries, _ = record_steps(lambda x: x[places], 2, lambda: torch.ones(3, device="cuda"))
    assert names(entries) == ["wait", "index"]


def test_copies_that_wait_and_copies_that_do_not():
    pinned = torch.ones(8).pin_memory
    entries, _ = record_steps(lambda: torch.ones(8).cuda(), 2)
    assert [(entry.kind, entry.mechanism, entry.detail, entry.reads) for entry in entries] == [
        ("wait", "h2d", "pageable", 32)
    ]
    entries, _ = record_steps(lambda x: x.cpu(), 2, lambda: torch.ones(8, device="cuda"))
    assert [(entry.kind, entry.mechanism, entry.reads) for entry in entries] == [("wait", "d2h", 32)]
    entries, _ = record_steps(lambda: pinned().cuda(non_blocking=True), 2)
    assert [(entry.kind, entry.mechanism, entry.detail, entry.reads) for entry in entries] == [
        ("copy", "h2d", "pinned", 32)
    ]


def test_casts_on_the_device_are_operators():
    entries, _ = record_steps(lambda x: x.half(), 2, lambda: torch.ones(3, device="cuda"))
    assert names(entries) == ["_to_copy"]


def test_a_read_that_counts_once_is_one_wait():
    entries, _ = record_steps(lambda x: x.tolist(), 2, lambda: torch.ones(3, device="cuda"))
    assert names(entries) == ["wait"]


def test_streams_and_events():
    def run(side):
        with torch.cuda.stream(side):
            torch.ones(3, device="cuda")
        torch.cuda.current_stream().wait_stream(side)

    entries, _ = record_steps(run, 3, lambda: torch.cuda.Stream())
    order = [(entry.kind, entry.stream, entry.number) for entry in entries]
    assert order == [
        ("stream", 1, 0), ("operator", 0, 0), ("stream", 0, 0), ("record", 1, 0), ("await", 0, 0),
    ]  # fmt: skip


def test_an_evaluation_marks_its_segment():
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        model = nn.Linear(2, 2).cuda()
        torch.optim.SGD(model.parameters(), lr=0.1)
        emulator.recorder.mark("user", "step")
        model.eval()
        emulator.recorder.mark("user", "step")
        model.train()
        emulator.recorder.mark("user", "step")
        segments = emulator.session().programme.segments
    assert [segment.evaluates for segment in segments] == [False, True, False]


def test_equal_steps_are_kept_once_and_old_ones_dropped():
    x = None

    def run():
        nonlocal x
        x = torch.ones(3, device="cuda") if x is None else x + 1

    _, kept = record_steps(run, segments.MAX_SEGMENTS + 10)
    assert len(kept.segments) == segments.MAX_SEGMENTS
    assert kept.segments[-1].tick == segments.MAX_SEGMENTS + 9
    assert len(kept.bodies) == 1


def repeat_addition(times):
    x = torch.ones(3, device="cuda")
    for _ in range(times):
        x = x + 1


def steps_of_sizes(sizes):
    """Return the programme of steps that each use a tensor of another size."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        for size in sizes:
            torch.ones(size, device="cuda").mul_(2).sum()
            emulator.recorder.mark("user", "step")
        return emulator.session().programme


def test_items_are_bounded_and_the_oldest_segments_go(monkeypatch):
    monkeypatch.setattr(segments, "MAX_ITEMS", 50)
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        for times in (30, 15, 15):
            repeat_addition(times)
            emulator.recorder.mark("user", "step")
        kept = emulator.session().programme
        assert [segment.tick for segment in kept.segments] == [1, 2]
        assert not kept.truncated
        repeat_addition(60)
        emulator.recorder.mark("user", "step")
        assert emulator.session().programme.truncated
        repeat_addition(10)
        emulator.recorder.mark("user", "step")
        assert [segment.tick for segment in emulator.session().programme.segments] == [1, 2, 4]


def test_segments_of_new_shapes_are_kept_and_the_oldest_entries_go(monkeypatch):
    monkeypatch.setattr(segments, "MAX_ENTRIES", 7)
    kept = steps_of_sizes(range(1, 9))
    assert not kept.truncated
    assert [segment.tick for segment in kept.segments] == [6, 7]
    shapes = [[kept.entries[at].outputs for at in kept.bodies[segment.body]] for segment in kept.segments]
    assert shapes == [[((size,),), ((size,),), ((),)] for size in (7, 8)]


def test_a_segment_alone_may_have_more_entries_than_are_kept_together(monkeypatch):
    monkeypatch.setattr(segments, "MAX_ENTRIES", 2)
    kept = steps_of_sizes([3, 4])
    assert [segment.tick for segment in kept.segments] == [1]
    assert len(kept.entries) == 3


def test_shapes_that_come_back_are_one_entry_though_old_segments_go(monkeypatch):
    monkeypatch.setattr(segments, "MAX_ENTRIES", 7)
    kept = steps_of_sizes([1, 2, 1, 3, 1, 4, 1])
    assert [segment.tick for segment in kept.segments] == [4, 5, 6]
    assert len(kept.entries) == 6


numbers = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=12)


@given(numbers, st.integers(1, 12), st.integers(1, 12))
def test_what_is_kept_is_the_newest_that_fits(bodies, most_entries, most_items):
    store = Segments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MAX_ENTRIES", most_entries)
        patch.setattr(segments, "MAX_ITEMS", most_items)
        for tick, body in enumerate(bodies):
            for name in body:
                number = store.numbers.get(name)
                store.add(store.new(name, Entry(number=name)) if number is None else number, -1)
            store.close(tick, False, ())
            assert len(store.numbers) <= max(most_entries, most_items)
    result = store.programme()
    kept = {
        segment.tick: [result.entries[at].number for at in result.bodies[segment.body]]
        for segment in result.segments
    }
    short = [tick for tick, body in enumerate(bodies) if len(body) <= most_items]
    assert list(kept) == short[len(short) - len(kept) :]
    assert all(kept[tick] == bodies[tick] for tick in kept)
    assert result.truncated is (len(short) < len(bodies))
    assert len(set().union(*kept.values())) == len(result.entries) == len(store.numbers)
    if len(kept) > 1:
        assert len(result.entries) <= most_entries
        assert sum(map(len, kept.values())) <= most_items


def test_work_of_other_threads_is_reported():
    from concurrent.futures import ThreadPoolExecutor

    with Emulator(EmulatorOptions(programme=True)) as emulator:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.ones, 3, device="cuda").result()
        emulator.recorder.mark("user", "step")
        kept = emulator.session().programme
    assert kept.threads
    assert kept.entries == ()


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_follows_torchs_settings(allowed):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        (entry,), _ = record_steps(lambda x: x @ x, 2, lambda: torch.ones(3, 3, device="cuda"))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert entry.tf32 is allowed


def test_no_segment_no_programme():
    assert ProgrammeRecorder(gpus.DEFAULT).programme() is None


@pytest.mark.parametrize("name", ["a100", "h100", "t4"])
def test_the_gpu_is_the_one_that_is_emulated(name):
    with Emulator(EmulatorOptions(name, programme=True)) as emulator:
        emulator.recorder.mark("user", "step")
        gpu = emulator.session().programme.gpu
    assert gpu.name == gpus.find(name).name
    assert gpu.multiprocessors == gpus.find(name).multi_processor_count


def test_functions_of_torch_func_are_recorded_with_their_batches():
    """Launches of `vmap` and `grad` are those of the same batch written out."""

    def prepare():
        return torch.ones(8, 8, device="cuda"), torch.ones(4, 8, device="cuda", requires_grad=True)

    def mapped(tensors):
        weight, rows = tensors
        torch.func.vmap(lambda row: (row @ weight).tanh())(rows.detach())
        torch.func.grad(lambda row: (row @ weight).sum())(rows.detach()).sum().item()

    def written(tensors):
        weight, rows = tensors
        (rows.detach() @ weight).tanh()
        torch.autograd.grad((rows @ weight).sum(), rows)[0].sum().item()

    def launched(run):
        return sorted(name for name in names(record_steps(run, 3, prepare)[0]) if "view" not in name)

    assert launched(mapped) == launched(written)
    assert "wait" in launched(mapped)


@pytest.mark.parametrize(("old", "threads"), [(True, {32}), (False, {0})])
def test_how_many_threads_sum_up_a_loss_depends_on_the_version_of_torch(old, threads, monkeypatch):
    """Forward and backward: 32 before torch 2.8; since then as many as the rows ask for."""
    monkeypatch.setattr(programme, "_ONE_WARP", programme.one_warp((2, 7) if old else (2, 8)))

    def run():
        logits = torch.ones(64, 10, device="cuda", requires_grad=True)
        labels = torch.zeros(64, dtype=torch.long, device="cuda")
        nn.functional.cross_entropy(logits, labels).backward()

    entries = record_steps(run)[1].entries
    losses = [entry for entry in entries if "nll_loss" in entry.name]
    assert len(losses) == 2
    assert {entry.block for entry in losses} == threads
    assert {entry.block for entry in entries if "nll_loss" not in entry.name} == {0}


@pytest.mark.skipif(
    not reports_storage_ends(), reason=f"torch 2.{VERSION[1]} does not tell when storages end"
)
def test_what_a_step_asks_for_between_two_times_that_it_empties_the_cache():
    def step():
        torch.ones(1 << 20, device="cuda")
        torch.ones(1 << 23, device="cuda")
        torch.cuda.empty_cache()

    requests = record_steps(step, steps=9)[1].emptied
    assert [run.action.count(EMPTY) for run in requests] == [3]
    assert [sorted(set(run.size)) for run in requests] == [[0, 4 << 20, 32 << 20]]
    assert record_steps(lambda: torch.ones(3, device="cuda"), steps=9)[1].emptied == ()


def test_a_cache_that_is_emptied_before_the_first_step_is_not_looked_at():
    def prepare():
        torch.ones(1 << 20, device="cuda")
        torch.cuda.empty_cache()

    assert record_steps(lambda: torch.ones(3, device="cuda"), steps=3, prepare=prepare)[1].emptied == ()


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("whose", ["neither", "input", "weight", "both"])
def test_a_convolution_runs_with_channels_last_where_its_input_or_weight_has_them_so(side, whose):
    """Forward and backward; weights of 1×1 are contiguous in either way, and tell by their strides."""

    def prepare():
        model = nn.Conv2d(4, 8, side, bias=False).cuda()
        images = torch.randn(2, 4, 6, 6, device="cuda")
        if whose in ("weight", "both"):
            model = model.to(memory_format=torch.channels_last)
        if whose in ("input", "both"):
            images = images.to(memory_format=torch.channels_last)
        return model, images.requires_grad_()

    def run(prepared):
        model, images = prepared
        model(images).sum().backward()

    _, kept = record_steps(run, prepare=prepare)
    flags = [entry.channels_last for entry in kept.entries if entry.name.startswith("aten::convolution")]
    assert flags == [whose != "neither"] * 2


@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_tell_whether_they_take_statistics(training):
    """Those that do not are named as ATen names the operator that never does."""

    def run(model):
        with torch.no_grad():
            model(torch.ones(2, 4, 3, 3, device="cuda"))

    _, kept = record_steps(run, prepare=lambda: nn.BatchNorm2d(4).cuda().train(training))
    names = [entry.name for entry in kept.entries if "batch_norm" in entry.name]
    assert ("no_training" in "".join(names)) is not training


def test_libraries_are_set_up_at_their_first_call():
    weight = torch.ones(2, 2, 1, 1)

    def run():
        image = torch.ones(1, 2, 4, 4, device="cuda")
        nn.functional.conv2d(torch.ones(1, 2, 4, 4), weight) @ torch.ones(4, 4)
        with torch.backends.cudnn.flags(enabled=False):
            nn.functional.conv2d(image, weight.cuda(), padding=1)
        image @ image
        image.add(1) @ image
        nn.functional.conv2d(image, weight.cuda())

    lines = record_steps(run, steps=2)[1].libraries
    first = run.__code__.co_firstlineno
    assert {name: line.line - first for name, line in lines.items()} == {"cuBLAS": 5, "cuDNN": 7}


@pytest.mark.parametrize(
    ("operation", "orders"),
    [
        (lambda x: x.clone(), ["kept"]),
        (lambda x: x.permute(0, 2, 1, 3).contiguous(), ["strided"]),
        (lambda x: x.transpose(2, 3).contiguous(), ["turned"]),
        (lambda x: x.mT.half(), ["kept"]),
        (lambda x: x[:, :, :1].expand(-1, -1, 4, -1).contiguous(), ["strided"]),
        (lambda x: x + x, ["kept"]),
        (lambda x: x + x.clone(memory_format=torch.channels_last), ["turned", "turned"]),
        (lambda x: torch.add(x, 1), ["kept"]),
        (lambda x: torch.empty_like(x).copy_(x), ["kept"]),
        (lambda x: nn.functional.layer_norm(x, (5,)), ["kept"]),
        (lambda x: nn.functional.layer_norm(x.transpose(1, 2), (5,)), ["strided"]),
        (lambda x: nn.functional.layer_norm(x.permute(0, 2, 3, 1), (3,)), ["turned"]),
    ],
)
def test_the_relative_layout_of_tensors_is_reported(operation, orders):
    _, kept = record_steps(lambda: operation(torch.zeros(2, 3, 4, 5, device="cuda")))
    assert [entry.order for entry in kept.entries if entry.order] == orders


def test_batch_norms_tell_whether_channels_lie_last():
    norm = nn.BatchNorm2d(4)

    def run():
        images = torch.zeros(2, 4, 6, 6, device="cuda")
        for order in (torch.contiguous_format, torch.channels_last):
            norm.cuda()(images.to(memory_format=order))

    _, kept = record_steps(run)
    flags = [entry.channels_last for entry in kept.entries if "batch_norm" in entry.name]
    assert flags == [False, True]


def test_convolutions_that_differ_in_layout_alone_are_two_entries():
    weight = torch.zeros(8, 4, 3, 3)

    def run():
        images, kernels = torch.zeros(2, 4, 6, 6, device="cuda"), weight.cuda()
        torch.conv2d(images, kernels)
        torch.conv2d(images.to(memory_format=torch.channels_last), kernels)

    _, kept = record_steps(run)
    flags = [entry.channels_last for entry in kept.entries if entry.name == "aten::convolution"]
    assert flags == [False, True]
