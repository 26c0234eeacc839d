"""Inline PTX against what its instructions are documented to do."""

from __future__ import annotations

import pytest
import torch

from gapless.kernels import ptx
from gapless.kernels.values import Unsupported

X = torch.tensor([[-30.0, -1.0, 0.0, 0.5, 3.0, 19.0, 25.0, 100.0]])


def test_predicates_keep_what_they_do_not_write() -> None:
    """Softplus, which is the identity where it is large."""
    text = r"""{ .reg .pred p;
        setp.gt.f32  p, $1, 20.;
        @p  mov.f32  $0, $1;   // large
        @!p mul.f32            $0, $1, 1.4426950408889634;
        @!p ex2.approx.ftz.f32 $0, $0;
        @!p add.f32            $0, $0, 1.0;\0A @!p lg2.approx.ftz.f32 $0, $0;
        @!p mul.f32            $0, $0, 0f3F317218; }"""
    out = ptx.run_ptx(text, {"$1": X})["$0"]
    torch.testing.assert_close(out, torch.nn.functional.softplus(X))


def test_integers_and_bits() -> None:
    a = torch.tensor([[-8, -1, 0, 5]], dtype=torch.int32)
    assert ptx.run_ptx("shr.u32 $0, $1, 1;", {"$1": a})["$0"].tolist() == [[0x7FFFFFFC, 0x7FFFFFFF, 0, 2]]
    assert ptx.run_ptx("shr.s32 $0, $1, 1;", {"$1": a})["$0"].tolist() == [[-4, -1, 0, 2]]
    text = ".reg .pred p; setp.lt.u32 p, $1, 0x10; selp.s32 $0, 1, $1, p;"
    assert ptx.run_ptx(text, {"$1": a})["$0"].tolist() == [[-8, -1, 1, 1]]
    assert ptx.run_ptx("and.b32 $0, $1, 0x7FFFFFFF;", {"$1": X})["$0"].view(torch.float32).equal(X.abs())


@pytest.mark.parametrize(
    "text",
    [
        "ld.global.f32 $0, [$1];",
        "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;",
        "cvt.rn.bf16x2.f32 $0, $1, $1;",
        "add.f32 $0, $1, %unknown;",
        "bar.sync 0;",
    ],
)
def test_what_is_not_known_is_said(text: str) -> None:
    with pytest.raises(Unsupported, match="inline PTX"):
        ptx.run_ptx(text, {"$1": X})
