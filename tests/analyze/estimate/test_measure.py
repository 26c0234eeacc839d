"""Times from a real profile, in place of a data sheet's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from programmes import MS, add, read, session
from trace_builder import Trace

from gapless.analyze import report
from gapless.analyze.estimate import measure
from gapless.analyze.estimate.measure import canonical_name, read_calibration
from gapless.errors import UnreadableInput
from gapless.model.programme import Entry
from gapless.model.session import decode, encode

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
MM = Entry(name="aten::mm", dtype="float32", inputs=((64, 64), (64, 64)), outputs=((64, 64),), tensors=2,
           elements=8192, reads=32768, writes=16384)  # fmt: skip
OTHER = msgspec.structs.replace(MM, inputs=((8, 8), (8, 8)), outputs=((8, 8),))


def profile(
    path: Path, *, shapes: bool = True, steps: int = 4, kernel: float = 900, host: float = 40
) -> Path:
    """Steps of ten products, each `kernel` µs long and launched every `host` µs, and a read at their end."""
    trace = Trace(gpu="NVIDIA H100 80GB HBM3")
    now, free = 0.0, 0.0
    for step in range(steps):
        begin = now
        for _ in range(10):
            args = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]} if shapes else {}
            number = trace.operator("aten::mm", now, host - 5, **args)
            start = max(now + 10, free)
            trace.launch("gemm", now + 2, kernel=(start, kernel), external=number)
            free = start + kernel
            now += host
        trace.copy("DtoH (Device -> Pageable)", now, free + 10 - now, copy=(free, 2))
        now = free + 15
        trace.wait(now, 4)
        now += 10
        free += 2
        trace.step(step, begin, now - begin)
    return trace.write(path)


def calibrated(run, path: Path):
    """On the GPU that was emulated, whatever the profile's is."""
    measured = msgspec.structs.replace(run.programme, calibration=read_calibration(str(path), run.programme))
    return msgspec.structs.replace(run, programme=measured)


def test_a_profile_brings_its_gpu(run, tmp_path):
    """Shares of the peak are of the GPU that was profiled; there are none where it is not known."""
    path = profile(tmp_path / "trace.json")
    calibrate = measure.calibrate(str(path), run.programme)
    assert (run.programme.gpu.fp32, calibrate.gpu.fp32) == (19.5, 67)
    done = report(msgspec.structs.replace(run, programme=calibrate)).estimate.throughput
    assert (done.unit, done.peak) == ("fp32", 67)
    assert report(calibrated(run, path)).estimate.throughput.peak == 0


@pytest.fixture
def run():
    return session(*[[*[MM] * 10, read()]] * 8)


@pytest.mark.parametrize("shapes", [True, False])
def test_a_step_takes_what_it_took(run, tmp_path, shapes):
    path = profile(tmp_path / "trace.json", shapes=shapes)
    estimate = report(calibrated(run, path)).estimate
    assert estimate.device == pytest.approx(10 * 0.9 * MS, rel=0.01)
    assert estimate.step.likely == pytest.approx(9.1 * MS, rel=0.02)
    assert estimate.host == pytest.approx(10 * 0.04 * MS, rel=0.2)
    assert estimate.calibrated == str(path)
    assert estimate.covered == pytest.approx(1.0)
    assert estimate.gpu == "NVIDIA H100 80GB HBM3"
    assert estimate.reasons == ()
    narrow, wide = estimate.step, report(run).estimate.step
    assert narrow.most / narrow.least < wide.most / wide.least


def test_operators_of_other_shapes_are_scaled(run, tmp_path):
    """Their time by the data sheet, as many times longer as the known shapes were."""
    result = calibrated(session(*[[MM, OTHER]] * 6), profile(tmp_path / "trace.json"))
    plain = report(session(*[[OTHER]] * 6)).estimate.device
    factor = 0.9 * MS / report(session(*[[MM]] * 6)).estimate.device
    assert report(result).estimate.device == pytest.approx(0.9 * MS + plain * factor, rel=0.02)


def test_operators_that_the_profile_does_not_have_keep_their_estimate(tmp_path):
    result = calibrated(session(*[[MM, add(0.9)]] * 6), profile(tmp_path / "trace.json"))
    estimate = report(result).estimate
    assert estimate.device == pytest.approx(1.8 * MS, rel=0.02)
    assert estimate.covered == pytest.approx(0.5, abs=0.02)


def test_others_of_a_family_that_the_profile_has_take_its_share(tmp_path):
    """By hand: products take 900 µs each there, many times the data sheet's; so at most four times as long is
    what another product takes."""
    batched = Entry(
        name="aten::bmm", dtype="float32", inputs=((8, 512, 512), (8, 512, 512)), outputs=((8, 512, 512),),
        tensors=2, elements=1 << 22, reads=1 << 24, writes=1 << 23,
    )  # fmt: skip
    both = session(*[[*[MM] * 10, batched, read()]] * 8)
    alone = session(*[[batched, read()]] * 8)
    other = report(alone).estimate.device
    device = report(calibrated(both, profile(tmp_path / "t.json"))).estimate.device
    assert device == pytest.approx(10 * 900_000 + 4 * other, rel=0.01)


def test_the_error_of_the_estimate_is_reported(run, tmp_path):
    plain = report(run).estimate
    result = report(calibrated(run, profile(tmp_path / "t.json")))
    of = result.estimate
    assert of.uncalibrated == pytest.approx(plain.step.likely, rel=0.05)
    assert of.profiled == pytest.approx(9.05 * MS, rel=0.02)
    assert any(
        f"was {of.uncalibrated / of.profiled:.2f} × the profile's step" in reason
        for reason in result.verdict.why
    )
    assert (plain.uncalibrated, plain.profiled) == (-1, -1)


def test_a_calibrated_interval_is_narrower(run, tmp_path):
    plain, step = (
        report(run).estimate.step,
        report(calibrated(run, profile(tmp_path / "t.json"))).estimate.step,
    )
    assert step.most / step.least < 1.15 < plain.most / plain.least


def test_a_profile_of_something_else_makes_bounds(run, tmp_path):
    path = profile(tmp_path / "trace.json")
    estimate = report(calibrated(session(*[[MM] * 3] * 6), path)).estimate
    assert any("off the" in reason for reason in estimate.reasons)


def test_a_wait_is_priced_with_the_measured_times(run, tmp_path):
    slow = calibrated(run, profile(tmp_path / "trace.json", kernel=20, host=400))
    result = report(slow)
    assert result.estimate.prices.limiter == "host"
    assert result.estimate.reasons == ()
    assert result.findings[0].price.last < result.findings[0].price.blocked + 1


def test_measured_kernels_are_saved(run, tmp_path):
    result = calibrated(run, profile(tmp_path / "trace.json"))
    assert decode(encode(result)) == result


def test_no_such_file(run):
    with pytest.raises(UnreadableInput):
        read_calibration("/nowhere/trace.json", run.programme)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("aten::cudnn_batch_norm", "aten::native_batch_norm"),
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_efficient_attention",
        ),
        ("aten::cudnn_convolution_backward", "aten::convolution_backward"),
    ],
)
def test_operators_that_devices_name_differently_are_one(name, other):
    assert canonical_name(name) == canonical_name(other)
    assert canonical_name(name) != canonical_name(name + "_backward")


def test_a_real_profile_of_training():
    """ResNet-50 on a V100: 100 ms of the device a step; the products, normalizations and so on are known."""
    paths = sorted(TRACES.glob("kineto-resnet50_num_workers_0-*"))
    if not paths:
        pytest.skip("no profile of ResNet-50")
    size = 32 * 64 * 56 * 56 * 4
    layer = Entry(
        name="aten::convolution", dtype="float32", inputs=((32, 64, 56, 56), (64, 64, 3, 3)),
        outputs=((32, 64, 56, 56),), tensors=2, elements=size // 4, reads=size, writes=size,
    )  # fmt: skip
    run = session(*[[layer, add(1.0), read()]] * 6)
    measured = read_calibration(str(paths[0]), run.programme)
    by_name = {operator.name: operator for operator in measured.operators if not operator.shapes}
    assert by_name["convolution"].calls == 6 * 53
    assert 0.1 * MS < by_name["convolution"].device < 2 * MS
    assert any(operator.shapes == layer.inputs for operator in measured.operators)
    assert 0.08e9 < measured.step < 0.13e9
    assert 5_000 < measured.call < 20_000
    assert report(calibrated(run, paths[0])).estimate.refused == ""
