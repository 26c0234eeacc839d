"""Step marks: where training steps end, found without the script's help."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
import torch.utils.checkpoint
from torch.utils.data import DataLoader, TensorDataset

import gapless
from gapless.emulation.emulator import Emulator


@pytest.fixture
def emulator():
    with Emulator() as emulator:
        yield emulator


def kinds(emulator, kind):
    return [mark.name for mark in emulator.session().marks if mark.kind == kind]


def train_model(emulator, steps=2, **options):
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        model(torch.ones(2, 3, device="cuda")).sum().backward()
        optimizer.step()
    return model, optimizer


def test_each_optimizer_step_is_a_mark_and_advances_the_tick(emulator):
    train_model(emulator, steps=3)
    session = emulator.session()
    expected = [(kind, tick) for tick in range(3) for kind in ("backward", "optimizer")]
    assert [(mark.kind, mark.tick) for mark in session.marks] == expected
    assert any("optimizer.step()" in line.code for line in session.marks[1].stack)


def test_optimizers_are_distinguished_by_number(emulator):
    train_model(emulator, steps=1)
    train_model(emulator, steps=1)
    assert kinds(emulator, "optimizer") == ["SGD.step#0", "SGD.step#1"]


def test_a_step_the_scaler_skips_counts(emulator):
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    before = model.weight.detach().clone()
    loss = model(torch.ones(2, 3, device="cuda")).sum() * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert kinds(emulator, "optimizer") == ["SGD.step#0"]
    assert scaler.get_scale() == 2.0


def test_optimizers_that_step_inside_a_backward_pass_are_marked_where_it_ends(emulator):
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(4)]).cuda()
    model[0].requires_grad_(False)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model[1:].parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for _ in range(3):
        model(torch.ones(2, 3, device="cuda")).sum().backward()
    marks = emulator.session().marks
    assert [mark.kind for mark in marks] == ["backward", "optimizer", *["along"] * 5] * 3
    assert emulator.recorder.tick == 3
    assert {mark.stack[0].function.split(".")[-1] for mark in marks if mark.kind == "optimizer"} == {
        "backward"
    }


def test_optimizers_that_step_with_the_same_gradients_advance_the_tick_once(emulator):
    weights = [torch.ones(3, device="cuda", requires_grad=True) for _ in range(3)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    for _ in range(2):
        sum(weight.sum() for weight in weights).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert emulator.recorder.tick == 2
    assert kinds(emulator, "along") == ["SGD.step#1", "SGD.step#2"] * 2


def test_a_backward_pass_inside_another_ends_no_iteration(emulator):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).cuda()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    for _ in range(2):
        x2 = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=True)
        torch.utils.checkpoint.checkpoint(model[1], x2, use_reentrant=True).sum().backward()
    assert emulator.recorder.tick == 2
    assert len(kinds(emulator, "backward")) == 2


def test_numbers_of_optimizers_are_not_given_again(emulator):
    for _ in range(3):
        train_model(emulator, steps=1)
    assert kinds(emulator, "optimizer") == ["SGD.step#0", "SGD.step#1", "SGD.step#2"]


def test_threads_and_tasks_are_distinguished(emulator):
    async def both():
        async def train():
            for _ in range(2):
                train_model(emulator, steps=1)
                await asyncio.sleep(0)

        await asyncio.gather(train(), train())

    thread = threading.Thread(target=train_model, args=(emulator,))
    thread.start()
    thread.join()
    asyncio.run(both())
    train_model(emulator, steps=1)
    session = emulator.session()
    assert [mark.strand for mark in session.marks if mark.kind == "optimizer"] == [1, 1, 2, 3, 2, 3, 0]
    assert session.strands == (0, 0, 0, 0)


def test_the_profilers_and_the_users_steps_are_marks(emulator):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        profiler.step()
    gapless.step()
    assert kinds(emulator, "profiler") == ["profiler.step"]
    assert kinds(emulator, "user") == ["gapless.step"]


def test_backward_passes_are_marks_that_advance_until_there_is_an_optimizer(emulator):
    weight = torch.ones(3, device="cuda", requires_grad=True)
    for _ in range(2):
        weight.sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
    torch.ones(3, requires_grad=True).sum().backward()
    assert len(kinds(emulator, "gradients")) == emulator.recorder.tick == 2
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    assert emulator.recorder.tick == 2
    optimizer.step()
    assert emulator.recorder.tick == 3


def test_the_time_between_marks_is_reported():
    times = []
    with Emulator(clock=iter(range(10_000)).__next__) as emulator:
        emulator.recorder.between_marks = times.append
        x = torch.ones(3, device="cuda", requires_grad=True)
        x.sum().item()
        next(iter(DataLoader(TensorDataset(torch.ones(2, 2)))))
        x.sum().backward()
    assert len(times) == 2
    assert 0 < times[0] < times[1]


def test_batches_are_marks_that_do_not_advance(emulator):
    for _ in DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2):
        pass
    assert kinds(emulator, "batch") == ["", ""]
    assert emulator.recorder.tick == 0


def test_evaluation_is_recognized_by_the_trained_model(emulator):
    model, _ = train_model(emulator, steps=1)
    teacher = torch.nn.Linear(3, 1).cuda()
    x = torch.ones(2, 3, device="cuda")
    teacher.eval()
    x.sum().item()
    model.eval()
    x.mean().item()
    model.train()
    x.max().item()
    events = emulator.session().events
    phases = [
        event.phase for event in events if emulator.session().sites[event.site].operator.endswith("dense")
    ]
    assert phases == ["train", "eval", "train"]


def test_the_mark_handler_may_stop_the_script():
    class Enough(BaseException):
        pass

    def stop(mark):
        if mark.tick == 1:
            raise Enough

    with pytest.raises(Enough), Emulator(on_mark=stop) as emulator:
        train_model(emulator, steps=5)
    assert emulator.recorder.tick == 2


def test_nothing_is_left_behind(emulator):
    emulator.stop()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.step()
    assert kinds(emulator, "optimizer") == []
