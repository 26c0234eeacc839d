"""Rules of launches and kernels: what makes them speak, what they say, and what must leave them silent."""

from __future__ import annotations

import pytest
from rules.profiles import (
    LAUNCHES,
    MS,
    cost,
    find_hits,
    kernel,
    library,
    only,
    profile,
    said,
    site,
    steps,
)

from gapless.model import NOTHING, Cost, Site, SourceLine
from gapless.model.efficiency import Efficiency
from gapless.model.profile import KernelTime, Launches, Recording
from gapless.rules import rule
from gapless.rules._profile import LAUNCH_LESS


class TestLaunchBound:
    def test_a_line_that_loses_much(self) -> None:
        slow = cost("launch", 120, site("aten::mul", 30), stretches=900, steps=6)
        hit = only("GAP501", profile(slow, launches=LAUNCHES))
        assert hit.evidence == (
            "the GPU idles 20 ms of each 100 ms step, 20 %, after kernels that end before the next one is "
            "launched",
            "most of it at aten::mul",
            "1,000 operations on the GPU per step, 70 % shorter than their launches",
            "the median kernel takes 4.1 µs, the median launch 6.3 µs",
            "nothing was queued for the GPU for 43 % of the time",
        )
        assert "torch.compile" in hit.remedy

    def test_operators_without_lines_are_one_finding(self) -> None:
        names = ("aten::linear", "aten::mul", "aten::add", "aten::relu")
        slow = [cost("launch", 60 - n, site(name), steps=6) for n, name in enumerate(names)]
        hit = only("GAP501", profile(*slow))
        assert hit.site is None
        assert hit.idle == 234 * MS
        assert "at 4 places" in said(hit)
        assert "most of it at aten::linear, aten::mul, aten::add" in said(hit)

    def test_many_small_lines_are_one_finding_that_names_the_largest(self) -> None:
        slow = [cost("launch", 2, site("aten::mul", 30 + n), steps=6) for n in range(20)]
        hit = only("GAP501", profile(*slow))
        assert "6.7 %, at 20 places" in said(hit)
        assert "train.py:30, train.py:31, train.py:32" in said(hit)

    def test_all_places_that_one_change_mends_are_one_finding(self) -> None:
        slow = [
            cost("launch", 60, site("aten::mul", 30)),
            *(cost("launch", 18, site("aten::add", n)) for n in (4, 5)),
        ]
        hit = only("GAP501", profile(*slow))
        assert (hit.idle, hit.site) == (96 * MS, None)
        assert "most of it at train.py:30, train.py:4, train.py:5" in said(hit)

    def test_the_queues_numbers_are_reported_once(self) -> None:
        slow = [
            cost("launch", 60, site("Optimizer.step#SGD.step", 30), steps=6),
            cost("launch", 90, site("aten::add", 40), steps=6),
        ]
        hits = find_hits("GAP501", profile(*slow, launches=LAUNCHES))
        assert [hit.idle for hit in hits] == [90 * MS, 60 * MS]
        assert ["per step" in said(hit) for hit in hits] == [True, False]

    @pytest.mark.parametrize(
        ("where", "remedy"),
        [
            (site("Optimizer.step#AdamW.step"), "`torch.optim.AdamW(..., fused=True)`"),
            (
                site("aten::mul_", 9, library("torch/optim/sgd.py", "SGD.step")),
                "`torch.optim.SGD(..., fused=True)`",
            ),
            (site("Optimizer.step#Adagrad.step"), "torch.compile(optimizer.step)"),
            (
                site("aten::lerp_", 9, library("torch/optim/nadam.py", "NAdam.step")),
                "torch.compile(optimizer.step)",
            ),
            (site("Optimizer.step#NorMuon.step"), "your own optimizer"),
            (site("Optimizer.zero_grad#SGD.zero_grad"), "set_to_none=True"),
            (
                site("aten::mul", 9, SourceLine("/tmp/torchinductor_me/a.py", 3, "call")),
                "compiled code launches here",
            ),
        ],
    )
    def test_the_remedy_fits_what_launches(self, where: Site, remedy: str) -> None:
        assert remedy in only("GAP501", profile(cost("launch", 60, where, steps=6))).remedy

    def test_the_optimizer_is_a_finding_of_its_own(self) -> None:
        place = "Optimizer.step#Adam.step"
        slow = [
            cost("launch", 30, site("aten::mul_"), place=f"aten::mul_ in {place}", steps=6),
            cost("launch", 12, site("aten::sqrt"), place=f"aten::sqrt in {place}", steps=6),
            cost("launch", 60, site("aten::linear"), steps=6),
        ]
        model, optimizer = find_hits("GAP501", profile(*slow))
        assert (model.idle, optimizer.idle) == (60 * MS, 42 * MS)
        assert "fused=True)` updates" in optimizer.remedy

    def test_launches_without_an_operator_are_of_compiled_or_custom_kernels(self) -> None:
        names = ("cuLaunchKernel", "hipExtModuleLaunchKernel")
        bare = [cost("launch", 30, site(n), place=f"triton_poi_{n}", steps=6) for n in names]
        hit = only("GAP501", profile(*bare))
        assert "most of it at kernels launched outside operators" in said(hit)
        assert "compiled code launches here" in hit.remedy

    def test_a_scheduler_of_learning_rates_is_no_optimizer(self) -> None:
        where = site("aten::mul", 9, library("torch/optim/lr_scheduler.py", "LRScheduler.step"))
        assert only("GAP501", profile(cost("launch", 60, where, steps=6))).remedy == rule("GAP501").advice

    def test_a_device_that_is_kept_busy(self) -> None:
        assert not find_hits("GAP501", profile(cost("launch", 20, site("aten::mul", 30)), launches=LAUNCHES))
        assert not find_hits("GAP501", profile(launches=LAUNCHES))

    def test_a_handful_of_launches_tells_nothing(self) -> None:
        few = Launches(count=3, short=3, empty=0.9, call=6300, kernel=4100)
        assert not find_hits("GAP501", profile(cost("launch", 60, site("aten::mul", 30)), launches=few))


class TestUnderFilledKernels:
    def test_busy_with_little(self) -> None:
        kernels = (
            kernel("gemv", 300, 0.25, operator="aten::addmm"),
            kernel("softmax", 120, 0.5, operator="aten::softmax"),
            kernel("gemm", 120, 8.0),
        )
        hit = only("GAP502", profile(utilization=0.9, sm_efficiency=0.4, kernels=kernels))
        assert hit.evidence == (
            "kernels run for 90 % of the time, and at most 40 % of the multiprocessors' time is used",
            "gemv of aten::addmm: 0.25 blocks per multiprocessor, 50 ms of each 100 ms step, 50 %",
            "softmax of aten::softmax: 0.5 blocks per multiprocessor, 20 ms of each 100 ms step, 20 %",
        )
        assert hit.calls == 120

    def test_long_names_are_cut(self) -> None:
        kernels = (kernel("void at::native::" + "x" * 500, 400, 0.1),)
        hit = only("GAP502", profile(utilization=0.8, sm_efficiency=0.1, kernels=kernels))
        assert max(map(len, hit.evidence)) < 140

    @pytest.mark.parametrize(
        ("busy", "filled", "kernels"),
        [
            (0.9, 0.85, (kernel("gemv", 300, 0.25),)),  # filled well enough in all
            (0.2, 0.05, (kernel("gemv", 300, 0.25),)),  # idle comes first
            (0.9, 0.3, (kernel("gemm", 500, 4.0),)),
            (0.9, 0.3, (kernel("nccl", 500, 0.1, communication=True),)),
            (0.9, 0.3, (kernel("old", 500, -1.0),)),
            (0.9, -1.0, (kernel("gemv", 300, 0.25),)),
            (-1.0, -1.0, ()),
            (0.9, 0.3, (kernel("gemv", 30, 0.25),)),
        ],
    )
    def test_what_must_not_be_told(self, busy: float, filled: float, kernels: tuple[KernelTime, ...]) -> None:
        assert not find_hits("GAP502", profile(utilization=busy, sm_efficiency=filled, kernels=kernels))


class TestGpuBelowItsClocks:
    def test_what_goes_with_the_clock_takes_a_multiple(self) -> None:
        hit = only("GAP506", profile(efficiency=Efficiency(card="NVIDIA L4", short=3.64, products=1.93)))
        assert hit.evidence == (
            "this NVIDIA L4 runs well below its clocks, or other processes share it: its small elementwise "
            "kernels take 3.64 times as long as on others, and its matrix products 1.93 times",
        )

    @pytest.mark.parametrize(("short", "products"), [(1.2, 3.0), (4.0, 1.4), (4.0, -1.0), (-1.0, 2.5)])
    def test_one_of_them_alone_says_nothing(self, short: float, products: float) -> None:
        assert not find_hits("GAP506", profile(efficiency=Efficiency(short=short, products=products)))
        assert not find_hits("GAP506", profile())


class TestHostBusy:
    def test_a_line_of_the_loop(self) -> None:
        hit = only("GAP503", profile(cost("host", 60, site("", 44), stretches=6, steps=6, start=3, end=8)))
        assert hit.evidence == (
            "the GPU idles 10 ms of each 100 ms step, 10 %, while the CPU does other work and launches "
            "nothing",
        )
        assert (hit.start, hit.end) == (3, 8)
        assert hit.remedy == rule("GAP503").advice

    @pytest.mark.parametrize(
        ("where", "remedy"),
        [
            (site("", 9, library("wandb/sdk/run.py", "log")), "log every N steps: wandb runs here"),
            (site("", 9, library("tqdm/std.py", "update")), "tqdm"),
            (site("", 9, library("torch/serialization.py", "save")), "async_save"),
            (site("", 9, library("PIL/Image.py", "resize")), "move this into the dataset"),
            (
                site("", 9, library("torchvision/transforms/functional.py", "crop")),
                "move this into the dataset",
            ),
            (site("aten::conv2d", 9, library("torchvision/models/resnet.py", "forward")), "CPU tensors"),
            (site("", 9, call="gc.collect"), "gc.freeze()"),
            (site("MmBackward0"), "CPU tensors"),
            (site("Torch-Compiled Region: 0/0"), "TORCH_LOGS=graph_breaks"),
            (site("", 9, library("torch/_inductor/output_code.py", "__call__")), "compiled code launches"),
            (site(""), "is not in this profile"),
            (site("", 9, library("torch/_dynamo/convert_frame.py", "_compile")), "TORCH_LOGS=recompiles"),
        ],
    )
    def test_the_remedy_fits_what_the_host_does(self, where: Site, remedy: str) -> None:
        hit = only("GAP503", profile(cost("host", 60, where, steps=6)))
        assert remedy in hit.remedy
        assert hit.change not in ("", rule("GAP503").change)

    @pytest.mark.parametrize(
        ("where", "change"),
        [
            (site("_EngineBase.run_backward", 9, library("torch/_tensor.py", "backward")), LAUNCH_LESS),
            (site("autograd::engine::evaluate_function: CudnnBatchNormBackward0", 9), LAUNCH_LESS),
            (site("torch.conv2d", 9, library("torch/nn/modules/conv.py", "forward")), LAUNCH_LESS),
            (site("", 9, library("torch/nn/modules/module.py", "_call_impl")), LAUNCH_LESS),
            (site("Optimizer.step#SGD.step", 9), "`torch.optim.SGD(..., fused=True)`"),
            (site("dict.get", 9, library("torch/optim/adamw.py", "_init_group")), "fused=True"),
            (site("Optimizer.zero_grad#SGD.zero_grad", 9), NOTHING),
            (site("", 9, library("torch/utils/data/_utils/fetch.py", "fetch")), "num_workers=4"),
            (site("", 9, library("torch/utils/data/dataloader.py", "_next_data")), NOTHING),
            (site("", 9, library("torch/profiler/profiler.py", "step")), NOTHING),
        ],
    )
    def test_each_part_of_pytorch_has_its_own_remedy(self, where: Site, change: str) -> None:
        hit = only("GAP503", profile(cost("host", 60, where, steps=6)))
        assert change in hit.change
        assert "dataset" not in hit.remedy

    def test_a_hook_is_told_from_a_forward(self) -> None:
        module = library("torch/nn/modules/module.py", "inner")
        for function, hooked in (
            ("log_norm", True),
            ("forward", False),
            ("new_forward", False),
            ("add.<locals>.wrapper", False),
        ):
            own = SourceLine("net.py", 7, function)
            where = Site(operator="", mechanism="none", stack=(own, module))
            hit = only("GAP503", profile(cost("host", 60, where, steps=6)))
            assert ("handle.remove()" in hit.remedy) is hooked

    def test_parts_of_one_line_are_findings_of_their_own(self) -> None:
        names = ("Optimizer.step#SGD.step", "_EngineBase.run_backward", "")
        slow = [cost("host", 30 + n, site(name, 44), steps=6) for n, name in enumerate(names)]
        hits = find_hits("GAP503", profile(*slow))
        assert {hit.idle for hit in hits} == {32 * MS, 31 * MS, 30 * MS}
        (own,) = (hit for hit in hits if hit.idle == 32 * MS)
        assert own.remedy == rule("GAP503").advice

    def test_a_schedule_that_gapless_chose_is_not_advised(self) -> None:
        own = Recording(by_gapless=True)
        for where, steps_hit in ((site("aten::conv2d"), 1), (site("", 9), 1), (site("torch.add", 9), 2)):
            slow = cost("host", 60, where, steps=steps_hit, launching=50 * MS, start=50 * MS)
            hit = only("GAP503", profile(slow, recording=own))
            assert "schedule(" not in hit.remedy + hit.change
            assert hit.change.startswith(NOTHING)

    def test_an_operator_that_launches_has_no_tensors_on_the_cpu(self) -> None:
        slow = {"launching": 50 * MS, "start": 250 * MS}
        once = only("GAP503", profile(cost("host", 60, site("aten::conv2d"), steps=1, **slow)))
        assert "for the first time" in once.remedy
        always = only("GAP503", profile(cost("host", 60, site("aten::conv2d"), steps=6, **slow)))
        assert "its own core" in always.remedy
        several = [cost("host", 30, site("aten::mm", n), steps=6, launching=30 * MS) for n in (4, 5)]
        assert "at 2 places" in said(only("GAP503", profile(*several)))
        mixed = cost("host", 25, site("aten::randn"), steps=6), cost("host", 25, site("Other"), steps=6)
        assert "most of it at" in only("GAP503", profile(*mixed)).change

    def test_the_first_step_only(self) -> None:
        once = cost("host", 60, site("", 9), steps=1, start=50 * MS)
        hit = only("GAP503", profile(once))
        assert "60 ms in 1 of 6 steps, 10 % of the time of all" in said(hit)
        assert "only in the first step" in hit.remedy

    def test_a_later_step_is_no_beginning(self) -> None:
        once = cost("host", 60, site("", 9), steps=1, start=250 * MS)
        assert "first step" not in only("GAP503", profile(once)).remedy

    def test_small_places_are_grouped(self) -> None:
        small = [cost("host", 3, site("", 50 + n), steps=6) for n in range(12)]
        large = cost("host", 30, site("", 9), steps=6)
        first, rest = find_hits("GAP503", profile(large, *small))
        assert (first.idle, rest.idle) == (30 * MS, 36 * MS)
        assert rest.site is None
        assert "at 12 places" in said(rest)

    def test_only_a_limited_number_of_places_get_own_lines(self) -> None:
        large = [cost("host", 20 - n, site("", 50 + n), steps=6) for n in range(8)]
        hits = find_hits("GAP503", profile(*large))
        assert [hit.idle for hit in hits] == [n * MS for n in (20, 19, 18, 17, 16, 15 + 14 + 13)]
        assert hits[-1].site is None

    def test_a_place_of_several_percent_gets_its_own_line(self) -> None:
        hits = find_hits(
            "GAP503", profile(cost("host", 30, site("", 9)), *(cost("host", 9, site("", n)) for n in (5, 6)))
        )
        assert [hit.idle for hit in hits] == [30 * MS, 9 * MS, 9 * MS]

    def test_places_where_the_gpu_works_on_do_not_count(self) -> None:
        free = [cost("host", 0, site("", 50 + n), steps=6) for n in range(8)]
        hit = only("GAP503", profile(*(cost("host", 4, site("", 80 + n), steps=6) for n in range(9)), *free))
        assert "at 9 places" in said(hit)

    def test_unrecorded_time_is_not_attributed_to_recorded_events(self) -> None:
        hit = only(
            "GAP503",
            profile(cost("host", 60, site(""), steps=6), cost("host", 12, site("aten::to"), steps=6)),
        )
        assert "most of it between operators, in unrecorded code" in said(hit)
        assert "aten::to" not in said(hit)

    def test_places_that_profiles_sum_up_are_never_a_place(self) -> None:
        rest = cost("host", 60, Site(operator="", mechanism="none"), place="elsewhere", steps=6)
        assert only("GAP503", profile(rest)).site is None

    def test_a_full_queue_makes_it_free(self) -> None:
        assert not find_hits("GAP503", profile(cost("host", 0, site("", 9), steps=6)))
        assert not find_hits("GAP503", profile(cost("host", 20, site("", 9), steps=6)))


class TestLongDriverCall:
    @pytest.mark.parametrize(
        ("operator", "remedy"),
        [
            ("cudaGraphLaunch", "launching the graph itself takes long"),
            ("cudaGraphInstantiateWithFlags", "capture the graph once"),
            ("cuModuleLoadDataEx", "CUDA_MODULE_LOADING=EAGER"),
            ("nvrtcCompileProgram", "TORCH_LOGS=recompiles"),
            ("cudaLaunchKernel", "find what changes from step to step"),
        ],
    )
    def test_in_each_step(self, operator: str, remedy: str) -> None:
        hit = only("GAP504", profile(cost("graph", 60, site(operator, 12), calls=12, steps=6)))
        assert "10 ms of each 100 ms step, 10 %" in said(hit)
        assert f"2 calls per step ({operator})" in said(hit)
        assert remedy in hit.remedy

    def test_code_that_was_compiled_before_is_not_compiled_again(self) -> None:
        ran = site("cudaLaunchKernel", 12, library("torch/_dynamo/eval_frame.py", "compile_wrapper"))
        assert only("GAP504", profile(cost("graph", 60, ran, steps=6))).remedy == rule("GAP504").advice

    def test_a_graph_launch_of_the_only_step_counts(self) -> None:
        launch = cost("graph", 20, site("cudaGraphLaunch", 12), steps=1)
        assert only("GAP504", profile(launch, marked=steps(100))).idle == 20 * MS

    @pytest.mark.parametrize("count", [1, 3, 6])
    def test_the_first_step_loads_and_compiles(self, count: int) -> None:
        loads = cost("graph", 60, site("cuModuleLoadDataEx", 12), calls=12, steps=1)
        assert not find_hits("GAP504", profile(loads, marked=steps(*[100] * count)))

    def test_a_graph_that_is_launched_in_the_first_step_only(self) -> None:
        assert not find_hits("GAP504", profile(cost("graph", 60, site("cudaGraphLaunch", 12), steps=1)))

    def test_little(self) -> None:
        assert not find_hits("GAP504", profile(cost("graph", 12, site("cudaGraphLaunch", 12), steps=6)))


class TestGapsBetweenKernels:
    def test_many_pauses(self) -> None:
        gaps = cost("graph", 60, site(""), stretches=42_000, steps=6)
        hit = only("GAP505", profile(gaps))
        assert hit.evidence == (
            "the GPU idles 10 ms of each 100 ms step, 10 %, "
            "between operations that had been launched in time",
            "7,000 such gaps per step, 1.43 µs each on average",
        )
        assert hit.site is None

    def test_in_a_trace_without_steps(self) -> None:
        gaps = cost("graph", 60, site(""), stretches=42_000, steps=1)
        hit = only("GAP505", profile(gaps, marked=steps(600, source="span")))
        assert "60 ms of the 600 ms trace, 10 %" in said(hit)
        assert "42,000 such gaps in all" in said(hit)

    def test_they_are_no_call_of_the_driver(self) -> None:
        assert not find_hits("GAP504", profile(cost("graph", 60, site(""), stretches=42_000, steps=6)))

    @pytest.mark.parametrize(
        "other",
        [
            cost("graph", 12, site(""), stretches=9_000, steps=6),
            cost("graph", 60, site("cudaGraphLaunch"), stretches=60, steps=6),
            cost("graph", 60, site(""), place="elsewhere", steps=6),
        ],
    )
    def test_few_pauses_and_other_costs(self, other: Cost) -> None:
        assert not find_hits("GAP505", profile(other))
