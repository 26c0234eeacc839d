"""What operators reach of the GPU: by hand, and in real profiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import Trace

from gapless.analyze.kernel_times.recorded import entry
from gapless.analyze.profile.building import build_profile, profile_file
from gapless.analyze.reports import report
from gapless.model import gpus
from gapless.model.efficiency import Efficiency
from gapless.render import Style, renderer
from gapless.trace.arguments import Arguments

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
MM = {"Input Dims": [[512, 1024], [1024, 2048]], "Input type": ["c10::Half", "c10::Half"]}
RELU = {"Input Dims": [[4096, 4096]], "Input type": ["float"]}


def trace(gpu: str = "NVIDIA A100-SXM4-40GB") -> Trace:
    """Two products of 20 µs, one of them with the second kernel of a split contraction; a relu of 150 µs."""
    built = Trace(gpu=gpu)
    built.step(1, 0, 300)
    built.operator("aten::linear", 0, 30)
    built.operator("aten::mm", 1, 20, **MM)
    built.launch("gemm", 2, kernel=(10, 15))
    built.launch("splitKreduce", 10, kernel=(26, 5))
    built.operator("aten::mm", 35, 10, **MM)
    built.launch("gemm", 36, kernel=(45, 20))
    built.operator("aten::relu", 50, 20, **RELU)
    built.operator("aten::clamp_min", 51, 18, **RELU)
    built.launch("relu", 55, kernel=(70, 150))
    built.operator("aten::nowhere_known", 80, 10, **RELU)
    built.launch("own", 81, kernel=(225, 10))
    return built


def test_rates_by_hand() -> None:
    efficiency = build_profile(trace().timeline()).efficiency
    assert efficiency is not None
    card = gpus.find("a100-40gb")
    assert (efficiency.card, efficiency.estimated, efficiency.time, efficiency.covered) == (
        card.name,
        True,
        200_000,
        190_000,
    )
    relu, mm = efficiency.operators
    assert (mm.name, mm.calls, mm.time, mm.dtype) == ("aten::mm", 2, 40_000, "float16")
    assert mm.shapes == ((512, 1024), (1024, 2048))
    flops, nbytes = 2 * 512 * 1024 * 2048, 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048)
    assert mm.tflops == pytest.approx(2 * flops / 40e-6 / 1e12)
    assert mm.bandwidth == pytest.approx(2 * nbytes / 40e-6 / 1e9)
    assert mm.intensity == pytest.approx(flops / nbytes)
    assert mm.share == pytest.approx(flops / card.fp16 / 1e12 / 20e-6, rel=1e-3)
    assert (relu.name, relu.calls, relu.flops) == ("aten::clamp_min", 1, 0)
    assert relu.share == pytest.approx(8 * 4096**2 / card.bandwidth / 1e9 / 150e-6, rel=1e-3)
    assert [(family.name, family.calls) for family in efficiency.families] == [
        ("pointwise", 1),
        ("matmul", 2),
    ]
    assert sum(family.time for family in efficiency.families) == efficiency.covered
    assert efficiency.families[1].estimated == mm.estimated > 0


@pytest.mark.parametrize("times", [1, 4])
def test_how_many_times_as_long_as_estimated(times: int) -> None:
    trace = Trace(gpu="NVIDIA A100-SXM4-40GB")
    trace.step(1, 0, 4000)
    few = {"Input Dims": [[64, 4]], "Input type": ["float"]}
    for at in range(0, 2400, 100):
        trace.operator("aten::relu", at, 40, **few)
        trace.launch("relu", at + 1, kernel=(at + 10, 2 * times))
        trace.operator("aten::mm", at + 41, 40, **MM)
        trace.launch("gemm", at + 42, kernel=(at + 50, 17 * times))
    efficiency = build_profile(trace.timeline()).efficiency
    assert efficiency is not None
    assert efficiency.short == pytest.approx(times, rel=0.3)
    assert efficiency.products == pytest.approx(times, rel=0.3)


def test_few_calls_do_not_tell_how_fast_a_gpu_is() -> None:
    efficiency = build_profile(trace().timeline()).efficiency
    assert efficiency is not None
    assert (efficiency.short, efficiency.products) == (-1, -1)


def test_a_gpu_of_another_vendor_has_a_roof_and_no_estimate() -> None:
    efficiency = build_profile(trace("AMD Instinct MI300X").timeline()).efficiency
    assert efficiency is not None
    assert (efficiency.card, efficiency.estimated) == ("AMD Instinct MI300X", False)
    assert {group.estimated for group in (*efficiency.families, *efficiency.operators)} == {-1}
    assert all(operator.share > 0 for operator in efficiency.operators)


def test_an_unknown_gpu_has_rates_alone() -> None:
    efficiency = build_profile(trace("Some Accelerator").timeline()).efficiency
    assert efficiency is not None
    assert (efficiency.card, efficiency.estimated) == ("", False)
    assert {operator.share for operator in efficiency.operators} == {-1.0}
    assert all(operator.bandwidth > 0 for operator in efficiency.operators)


def test_without_shapes_there_is_nothing() -> None:
    trace = Trace()
    trace.operator("aten::mm", 0, 20)
    trace.launch("gemm", 2, kernel=(10, 15))
    assert build_profile(trace.timeline()).efficiency is None


def test_every_format_has_the_tables() -> None:
    result = report([build_profile(trace().timeline())])
    tables = [table for table in result.tables if "roof" in str(table.columns)]
    assert [table.shown for table in tables] == [0, 0]
    values = {name: renderer(name)(result, Style(unfold=True)) for name in ("json", "html", "text")}
    assert {name: "clamp_min" in text for name, text in values.items()} == dict.fromkeys(values, True)
    assert "aten::mm 512×1024 · 1024×2048 float16" in values["text"]


@pytest.mark.parametrize(
    ("name", "arguments", "outputs", "reads", "writes"),
    [
        ("aten::gt", Arguments(((8, 4), ()), ("float", "Scalar"), ("", "1.")), ((8, 4),), 128, 32),
        ("aten::add", Arguments(((8, 4), (1, 4)), ("c10::Half", "float")), ((8, 4),), 80, 128),
        ("aten::copy_", Arguments(((8, 4), (8, 4)), ("c10::Half", "float")), ((8, 4),), 128, 64),
        ("aten::_to_copy", Arguments(((8, 4), ()), ("c10::Half", "Scalar"), ("", "6")), ((8, 4),), 64, 128),
        ("aten::_to_copy", Arguments(((8, 4), ()), ("float", "Scalar"), ("", "15")), ((8, 4),), 128, 64),
        ("aten::sum", Arguments(((8, 4), ()), ("float", "ScalarList"), ("", "[-1]")), ((8,),), 128, 32),
        ("aten::sum", Arguments(((8, 4),), ("float",), ("",)), ((),), 128, 4),
        ("aten::embedding", Arguments(((900, 4), (2, 3)), ("float", "long int")), ((2, 3, 4),), 144, 96),
        (
            "aten::convolution",
            Arguments(
                ((2, 3, 9, 9), (8, 3, 3, 3), (8,), (), (), (), ()),
                ("float", "float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar"),
                ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False"),
            ),
            ((2, 8, 5, 5),),
            4 * (2 * 3 * 81 + 8 * 27 + 8),
            4 * 2 * 8 * 25,
        ),
    ],
    ids=str,
)
def test_what_an_operator_gives_back(name, arguments, outputs, reads, writes) -> None:
    request = entry(name, arguments)
    assert request is not None
    assert (request.outputs, request.reads, request.writes) == (outputs, reads, writes)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::cat", Arguments((((8, 4), (8, 4)), ()), ("TensorList", "Scalar"))),
        ("aten::nowhere_known", Arguments(((8, 4),), ("float",))),
        ("aten::convolution", Arguments(((2, 3, 9, 9), (8, 3, 3, 3)), ("float", "float"))),
        ("aten::mm", Arguments()),
        ("aten::gelu", Arguments(((), ()), ("", ""))),
        ("aten::add", Arguments(((), (8, 4), ()), ("", "float", "Scalar"), ("", "", "1"))),
        ("aten::mul", Arguments(((8, 4), ()), ("float", ""))),
        ("aten::mm", Arguments(((8, 4),), ("float",))),
    ],
    ids=str,
)
def test_what_arguments_do_not_tell(name, arguments) -> None:
    assert entry(name, arguments) is None


def real(name: str) -> Efficiency:
    path = next(TRACES.glob(f"{name}*.json.gz"), None) if TRACES.is_dir() else None
    if path is None:
        pytest.skip("the profiles are not here")
    efficiency = profile_file(str(path)).efficiency
    assert efficiency is not None
    return efficiency


@pytest.mark.parametrize(
    "name", ["TraceLens-h100-Falconsai", "TraceLens-mi300-resnet", "particle_transformer-gpu"]
)
def test_nothing_is_faster_than_the_data_sheet_allows(name: str) -> None:
    """What the L2 cache holds comes faster than from memory; no arithmetic is faster than its peak."""
    efficiency = real(name)
    assert 0.85 < efficiency.covered / efficiency.time <= 1
    assert efficiency.covered >= sum(operator.time for operator in efficiency.operators)
    assert {family.name for family in efficiency.families} >= {"pointwise", "matmul"}
    for operator in efficiency.operators:
        assert 0 <= operator.share < (1 if operator.flops else 1.5), operator
