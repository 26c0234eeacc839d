"""Two profiles of the same script, `slow` and `fast`, with parts and findings, for tests of comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gapless.model import Cost, Finding, Frequency, Loss, Profile, Site, SourceLine
from gapless.model.profile import (
    KernelTime,
    Launches,
    LineTime,
    MemoryUse,
    PhaseTime,
    Recording,
    Split,
    Steps,
)

MS = 1_000_000
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
ADD_LATER = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


def steps(lengths: Sequence[float], source: str = "ProfilerStep") -> Steps:
    """Steps of these lengths in milliseconds, one behind the other."""
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return Steps(
        source=source,
        names=tuple(f"{source}#{i}" for i in range(len(lengths))),
        start=tuple(int((end - length) * MS) for end, length in zip(ends, lengths, strict=True)),
        end=tuple(int(end * MS) for end in ends),
    )


def kernel(name: str, total: float, calls: int = 10, operator: str = "") -> KernelTime:
    """`total` in milliseconds over all steps."""
    return KernelTime(name=name, calls=calls, total=int(total * MS), operator=operator)


def at(line: int, function: str = "train", file: str = "/work/train.py", code: str = "") -> Site:
    return Site(operator="aten::index", mechanism="size", stack=(SourceLine(file, line, function, code),))


def cost(cause: str, site: Site, idle: float) -> Cost:
    return Cost(cause=cause, site=site, idle=int(idle * MS), stretches=1)


def line(site: Site, total: float) -> LineTime:
    return LineTime(site=site, total=int(total * MS), kernels=10)


def finding(code: str, site: Site | None, idle: float = 0, calls: int = 10, place: str = "") -> Finding:
    """`idle` in milliseconds over all steps."""
    return Finding(
        code=code,
        name={"GAP112": "boolean-mask-read", "GAP301": "starved-input"}.get(code, "pattern"),
        line=site.line if site else None,
        frequency=Frequency(when="every-step", waits=1, per_step=1, every=1, total=calls),
        remedy="change it",
        place=place,
        loss=Loss(idle=int(idle * MS), calls=calls),
    )


def slow() -> Profile:
    """Six steps of 100 ms, 60 ms of each idle."""
    return Profile(
        path="slow.json",
        gpu="NVIDIA A100-SXM4-80GB",
        vendor="nvidia",
        steps=steps([100, 100, 99, 101, 100, 100]),
        idle=360 * MS,
        split=Split(kernel=230 * MS, memcpy=10 * MS, loading=300 * MS, host=60 * MS),
        utilization=0.38,
        occupancy=31.0,
        phases=(
            PhaseTime(name="loading", host=300 * MS, idle=290 * MS),
            PhaseTime(name="forward", host=120 * MS, device=100 * MS, idle=40 * MS),
            PhaseTime(name="backward", host=100 * MS, device=140 * MS, idle=30 * MS),
        ),
        kernels=(
            kernel("ampere_sgemm_128x64_tn", 150, 60, "aten::mm"),
            kernel(ADD, 60, 120, "aten::add"),
            kernel("cub_nonzero", 20, 6, "aten::nonzero"),
        ),
        lines=(line(at(40), 150), line(at(60), 80)),
        launches=Launches(count=186, kernel=12_000),
        memory=MemoryUse(peak_allocated=8_000 * MS, peak_reserved=10_000 * MS),
        costs=(cost("input", at(30), 290), cost("wait", at(60), 60), cost("host", at(70), 10)),
        recording=Recording(stacks="frames", with_stack=True),
    )


def fast() -> Profile:
    """The same work in six steps of 52 ms: the batch is there in time, and the mask is gone."""
    return msgspec.structs.replace(
        slow(),
        path="fast.json",
        origin=5,
        steps=steps([52, 52, 51, 53, 52, 52]),
        idle=90 * MS,
        split=Split(kernel=212 * MS, memcpy=10 * MS, loading=30 * MS, host=60 * MS),
        utilization=0.68,
        phases=(
            PhaseTime(name="loading", host=30 * MS, idle=20 * MS),
            PhaseTime(name="forward", host=120 * MS, device=82 * MS, idle=40 * MS),
            PhaseTime(name="backward", host=100 * MS, device=140 * MS, idle=30 * MS),
        ),
        kernels=(
            kernel("ampere_sgemm_128x64_tn", 150, 60, "aten::mm"),
            kernel(ADD_LATER, 60, 120, "aten::add"),
            kernel("where_kernel", 2, 6, "aten::where"),
        ),
        lines=(line(at(43), 150), line(at(63), 62)),
        launches=Launches(count=186, kernel=12_000),
        memory=MemoryUse(peak_allocated=8_000 * MS, peak_reserved=10_000 * MS),
        costs=(cost("input", at(33), 20), cost("wait", at(63), 60), cost("host", at(73), 10)),
    )


SLOW_FINDINGS = (
    finding("GAP301", at(30), 290, 6),
    finding("GAP112", at(60, code="x = x[mask]"), 60, 6),
    finding("GAP101", at(80), 0, 60),
)
FAST_FINDINGS = (
    finding("GAP301", at(33), 20, 6),
    finding("GAP101", at(83), 0, 60),
    finding("GAP130", at(90), 12, 6),
)
