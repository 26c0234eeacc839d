"""An optimizer's step as if its parameters were taken together: what stays, what it saves."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programmes import add, session

import gapless
from gapless.analyze import report
from gapless.analyze.estimate.joined_optimizers import is_worth_joining, join_updates
from gapless.analyze.estimate.times import L4_HOST_FACTOR, USUAL, V100_HOST_FACTOR
from gapless.analyze.estimate.timing import times_of
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.lists import CHUNK_ELEMENTS, list_work
from gapless.analyze.kernel_times.operator_work import work
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model import SourceLine, gpus
from gapless.model.optimizer import Joined, OptimizerUse
from gapless.model.programme import Entry, HostSpeed, Programme, gpu_limits
from gapless.model.ranges import Range
from gapless.rules.gap507_optimizer_one_by_one import OptimizerOneByOne

L4, A100, T4 = (gpu_limits(gpus.find(name)) for name in ("l4", "a100", "t4"))


def adamw(sizes: list[int], **more: object) -> Entry:
    """A fused update of parameters of these sizes."""
    total = sum(sizes)
    return Entry(
        name="aten::_fused_adamw_", dtype="float32", tensors=5 * len(sizes), elements=4 * total + len(sizes),
        reads=16 * total, writes=16 * total, optimizer=True, **more,
    )  # fmt: skip


def foreach(sizes: list[int], lists: int = 1) -> Entry:
    """An operation in place on lists of tensors of these sizes."""
    total = sum(sizes)
    return Entry(
        name="aten::_foreach_mul_", dtype="float32", tensors=lists * len(sizes), elements=lists * total,
        reads=4 * lists * total, writes=4 * total, optimizer=True,
    )  # fmt: skip


def update(groups: int, tensors: int, way: str = "fused", site: int = 0) -> Entry:
    return Entry(
        kind="update", name="AdamW", detail=way, site=site, number=groups, tensors=tensors, optimizer=True
    )


USE = OptimizerUse(name="AdamW", way="fused", groups=40, settings=2, parameters=40)


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=300), st.integers(1, 4))
def test_lists_are_launched_as_atens_limits_have_it(sizes, lists):
    work = list_work(foreach(sizes, lists), "_foreach_mul_")
    most = {1: 110, 2: 64, 3: 48, 4: 36}[lists]
    assert work.kernels >= math.ceil(len(sizes) / most)
    assert work.blocks >= len(sizes)
    assert work.blocks <= sum(math.ceil(size / CHUNK_ELEMENTS) for size in sizes)
    assert work.fp64_instructions == 0


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_updates_together_never_take_the_gpu_longer(sizes):
    for gpu in (L4, A100, T4):
        apart = sum(device_time(work(adamw([size])), gpu) for size in sizes)
        assert device_time(work(adamw(sizes)), gpu) <= apart * 1.01


def test_a_fused_update_of_one_tensor_is_slow_where_fp64_is():
    """A chunk is one multiprocessor's, whose two units for fp64 are what an L4 has."""
    assert 0.2e6 < device_time(work(adamw([CHUNK_ELEMENTS])), L4) < 0.5e6
    assert device_time(work(adamw([CHUNK_ELEMENTS])), A100) < 0.1e6
    assert device_time(work(adamw([CHUNK_ELEMENTS] * 116)), L4) < 4 * device_time(
        work(adamw([CHUNK_ELEMENTS])), L4
    )


def test_465_updates_take_an_l4_about_as_long_as_published():
    """58.8 ms by roboflow/rf-detr pull request 1409, of about these sizes; launches come to that."""
    sizes = [147_456] * 54 + [589_824] * 24 + [65_536] * 48 + [524_288] * 4 + [23_296] * 14 + [384] * 321
    apart = sum(device_time(work(adamw([size])), L4) for size in sizes)
    assert apart == pytest.approx(58.8e6, rel=0.25)


def test_joined_updates_hold_what_the_single_ones_held():
    step = (add(1.0), update(40, 40), *[adamw([n + 1]) for n in range(40)], add(2.0, optimizer=False))
    joined = join_updates(step, 0, USE)
    assert [joined[0], joined[-1]] == [step[0], step[-1]]
    kernels = [entry for entry in joined if entry.name == "aten::_fused_adamw_"]
    assert len(kernels) == USE.settings
    assert sum(entry.reads for entry in kernels) == sum(entry.reads for entry in step if entry.optimizer)
    assert sum(kernel.tensors for kernel in kernels) == 200
    assert [(entry.number, entry.tensors) for entry in joined if entry.kind == "update"] == [(2, 40)]


def test_only_the_optimizer_that_is_meant_is_joined():
    other = (update(1, 1, site=1), adamw([7]))
    step = (update(2, 2), adamw([1]), adamw([2]), *other)
    use = msgspec.structs.replace(USE, groups=2, settings=1, parameters=2)
    joined = join_updates(step, 0, use)
    assert joined[-2:] == other
    assert len(joined) == 4
    assert join_updates(step, 5, use) == step


def test_what_went_one_by_one_becomes_a_fused_kernel():
    names = ("aten::mul_", "aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::addcdiv_")
    single = [Entry(name=name, dtype="float32", tensors=1, elements=10, reads=40, writes=40, optimizer=True)
              for _ in range(40) for name in names]  # fmt: skip
    use = OptimizerUse(
        name="AdamW", way="single", groups=1, settings=1, parameters=40, turned_off="foreach=False"
    )
    joined = join_updates((update(1, 40, "single"), *single), 0, use)
    assert [entry.name for entry in joined] == ["AdamW", "aten::_foreach_add_", "aten::_fused_adamw_"]
    assert joined[0].detail == "fused"
    assert joined[-1].reads == 4 * 40 * 40
    lists = msgspec.structs.replace(use, refuses_fused="RMSprop has no fused kernel")
    joined = join_updates((update(1, 40, "single"), *single), 0, lists)
    assert [entry.name for entry in joined[1:]] == [
        "aten::_foreach_mul_", "aten::_foreach_mul_", "aten::_foreach_lerp_", "aten::_foreach_addcmul_",
        "aten::_foreach_addcdiv_",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": 40}, {"parameters": 4}, {"in_backward": True}, {"way": "own"},
        {"way": "single", "refuses_fused": "sparse gradients", "refuses_foreach": "sparse gradients"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_joined_is_not_tried(changed):
    assert is_worth_joining(USE)
    assert not is_worth_joining(msgspec.structs.replace(USE, **changed))


def checked(count: int, groups: int, settings: int, gpu: str = "l4", **arguments: object):
    """The report of steps of AdamW alone."""
    with Emulator(EmulatorOptions(gpu, programme=True)) as emulator:
        parameters = [torch.nn.Parameter(torch.zeros(4096, device="cuda")) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW(
            [{"params": parameters[n::groups], "lr": 0.1 * (n % settings + 1)} for n in range(groups)],
            **arguments,
        )
        for _ in range(6):
            optimizer.step()
        return report(emulator.session())


SIZES = [65_536, 384, 16_384, 1_536] * 4
"""Elements of weights and biases in turn, so that settings have very different sizes."""


def stepped(way: str, settings: int = 4, gpu: str = "l4", **arguments: object):
    """The report of steps of AdamW alone: over a group for each parameter, an optimizer for each, or a group
    for each of the settings."""
    with Emulator(EmulatorOptions(gpu, programme=True)) as emulator:
        groups = []
        for position, size in enumerate(SIZES):
            weight = torch.nn.Parameter(torch.zeros(size, device="cuda"))
            weight.grad = torch.ones_like(weight)
            groups.append({"params": [weight], "lr": 0.1 * (position % settings + 1)})
        if way == "groups of settings":
            groups = [
                {
                    "params": [option for group in groups[n::settings] for option in group["params"]],
                    "lr": 0.1 * (n + 1),
                }
                for n in range(settings)
            ]
        apart = [[group] for group in groups] if way == "optimizers" else [groups]
        optimizers = [torch.optim.AdamW(each, **arguments) for each in apart]
        for _ in range(4):
            for each in optimizers:
                each.step()
            gapless.step()
        return report(emulator.session())


@pytest.mark.parametrize(
    ("way", "arguments", "better"),
    [
        ("groups", {"fused": True}, {"fused": True}),
        ("optimizers", {"fused": True}, {"fused": True}),
        ("groups", {"capturable": True}, {"capturable": True}),
        ("groups", {"foreach": False}, {"fused": True}),
    ],
    ids=str,
)
def test_the_estimate_of_joining_is_that_of_a_run_that_joined(way, arguments, better):
    report, then = stepped(way, **arguments), stepped("groups of settings", **better)
    (finding,) = [finding for finding in report.findings if finding.code == "GAP507"]
    (use,) = report.estimate.optimizers
    assert (use.settings, use.parameters) == (4, len(SIZES))
    assert use.joined.step.likely == pytest.approx(then.estimate.step.likely, rel=0.15)
    assert finding.price.of - finding.price.last == pytest.approx(then.estimate.step.likely, rel=0.15)
    assert [finding for finding in then.findings if finding.code == "GAP507"] == []


def test_one_optimizer_for_each_parameter_is_found():
    report = stepped("optimizers", settings=1, fused=True)
    (finding,) = [finding for finding in report.findings if finding.code == "GAP507"]
    assert finding.evidence == ("16 optimizers for 16 parameters, with the same settings",)
    assert finding.change == "one AdamW for all parameters"
    assert finding.price.least_last > 0.3 * finding.price.of
    assert report.verdict.do_first[0].what == "one AdamW for all parameters"


def test_captured_updates_are_left_alone():
    graph = Entry(kind="graph", name="cudaGraphLaunch", tensors=2)
    held = [msgspec.structs.replace(adamw([n + 1]), graph=True) for n in range(2)]
    step = (graph, *held, add(1.0))
    assert join_updates(step, 0, USE) == step


def test_settings_keep_the_sizes_of_their_own_parameters():
    use = msgspec.structs.replace(
        USE, groups=4, settings=2, parameters=4, members=((0, 1), (1, 1), (0, 1), (1, 1))
    )
    sizes = [1000, 1, 2000, 2]
    step = (update(4, 4), *[adamw([size]) for size in sizes])
    kernels = [joined_entry for joined_entry in join_updates(step, 0, use) if joined_entry.kind == "operator"]
    assert [kernel.reads for kernel in kernels] == [16 * 3000, 16 * 3]


@pytest.mark.parametrize("arguments", [{"fused": True}, {}], ids=str)
def test_many_groups_of_few_settings_are_found_with_what_joining_saves(arguments):
    report = checked(60, 60, 3, **arguments)
    (finding,) = [finding for finding in report.findings if finding.code == "GAP507"]
    assert finding.evidence[0] == "60 groups for 60 parameters, with only 3 different settings"
    assert finding.price.least_last > 0.3 * finding.price.of
    assert report.verdict.level == "act"
    assert "the optimizer loses" in report.verdict.sentence.lower()
    (change,) = report.verdict.do_first
    assert change.what == "60 → 3 parameter groups, one per setting"
    assert change.before - change.after == pytest.approx(finding.price.last, rel=0.01)


def test_the_loop_that_was_turned_on_is_found():
    report = checked(60, 1, 1, foreach=False)
    (finding,) = [finding for finding in report.findings if finding.code == "GAP507"]
    assert finding.change == "`fused=True`"
    assert "last bits" in finding.remedy
    assert finding.evidence == ("`foreach=False` launches each operation for each of 60 parameters",)


@pytest.mark.parametrize(
    ("groups", "settings", "arguments"),
    [(3, 3, {"fused": True}), (60, 60, {}), (1, 1, {}), (1, 1, {"fused": True})],
)
def test_groups_that_differ_and_defaults_are_left_alone(groups, settings, arguments):
    report = checked(60, groups, settings, **arguments)
    assert [finding.code for finding in report.findings] == []
    assert report.verdict.level == "fine"


def test_nothing_is_said_where_it_saves_next_to_nothing():
    steps = [[add(50.0), update(8, 8, "foreach"), *[foreach([8])] * 8]] * 6
    use = OptimizerUse(name="SGD", way="foreach", groups=8, settings=1, parameters=8)
    run = msgspec.structs.replace(session(*steps), optimizers=(use,))
    assert report(run).findings == ()


# -- the CPU ------------------------------------------------------------------------------------------


def test_an_update_takes_python_for_each_group_and_parameter():
    single, groups, tensors = (USUAL.optimizer_time(update(*of)) for of in ((1, 1), (9, 1), (1, 9)))
    assert single < tensors < groups
    assert USUAL.change_pace(2.0).optimizer_time(update(1, 1)) == 2 * single


def test_an_operator_over_one_small_tensor_takes_little_more_than_its_start():
    """In a profile of a B300 a copy of one takes 1.6 µs, and of four 1.7 µs."""
    b200 = gpu_limits(gpus.find("b200"))
    assert 1_500 < device_time(work(foreach([384])), b200) < 2_000
    # What an update has just gone through comes from the cache.
    first = msgspec.structs.replace(foreach([CHUNK_ELEMENTS], 2), optimizer=False)
    again = foreach([CHUNK_ELEMENTS], 2)
    assert device_time(work(again), b200) < 0.7 * device_time(work(first), b200)


def test_the_host_beside_a_v100_is_older():
    """As the shortest times of operators have it in NeuSight's tables."""
    hosts = [times_of(Programme(gpu=gpu_limits(gpus.find(name)))).host for name in ("v100", "a100")]
    assert hosts == [USUAL.change_pace(V100_HOST_FACTOR), USUAL]
    assert V100_HOST_FACTOR > 1


def test_the_host_beside_an_l4_is_slow_unless_it_is_this_machine():
    apart = HostSpeed(factor=0.5, measured=True, apart=True)
    here = msgspec.structs.replace(apart, apart=False)
    rented = USUAL.change_pace(L4_HOST_FACTOR)
    for gpu in (L4, T4):
        assert times_of(Programme(gpu=gpu)).host == rented
        assert times_of(Programme(gpu=gpu, host=apart)).host == rented
        assert times_of(Programme(gpu=gpu, host=here)).host == USUAL.change_pace(0.5)
        assert times_of(Programme(gpu=gpu, host=HostSpeed(factor=1.0))).host == USUAL
    assert times_of(Programme(gpu=A100, host=apart)).host == USUAL.change_pace(0.5)
    assert times_of(Programme(gpu=A100)).host == USUAL


@pytest.mark.parametrize("together", [True, False], ids=["one-pass", "pass-each"])
def test_optimizers_become_one_only_where_they_step_after_the_same_backward_pass(together):
    with Emulator(EmulatorOptions("l4", programme=True)) as emulator:
        nets = [torch.nn.ParameterList(torch.zeros(4096, device="cuda") for _ in range(4)) for _ in range(20)]
        optimizers = [torch.optim.Adam(net) for net in nets]
        for _ in range(6):
            losses = [sum(parameter.sum() for parameter in net) for net in nets]
            if together:
                torch.stack(losses).sum().backward()
            for loss, optimizer in zip(losses, optimizers, strict=True):
                if not together:
                    loss.backward()
                optimizer.step()
        session = emulator.session()
    (use,) = session.optimizers
    assert (use.instances, use.settings, use.turns) == ((20, 1, 1) if together else (20, 20, 20))
    advised = [finding.change for finding in report(session).findings if finding.code == "GAP507"]
    assert advised == (["one Adam for all parameters"] if together else [])


def test_the_function_that_makes_the_groups_is_named():
    use = msgspec.structs.replace(
        USE,
        maker=SourceLine("/home/me/groups.py", 61, "make_groups"),
        joined=Joined(before=10_000, step=Range(5_000, 5_000, 5_000), saved=Range(5_000, 5_000, 5_000)),
    )
    (hit,) = OptimizerOneByOne().of_optimizer(use)
    assert "`make_groups` at groups.py:61 makes the groups" in hit.evidence


def test_several_optimizers_for_each_of_two_backward_passes_become_two():
    use = OptimizerUse(
        name="Adam", way="foreach", instances=40, groups=40, settings=2, turns=2, parameters=40,
        joined=Joined(before=10_000, step=Range(5_000, 5_000, 5_000), saved=Range(5_000, 5_000, 5_000)),
    )  # fmt: skip
    (hit,) = OptimizerOneByOne().of_optimizer(use)
    assert hit.evidence == (
        "40 optimizers for 40 parameters, which step in 2 turns: after different backward passes, or with "
        "the same parameters",
    )
    assert hit.remedy.startswith("make 2 of Adam: one of all parameters")
