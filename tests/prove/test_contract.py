"""Results of bounded size, and cases in which the two need not do the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gapless import ops
from gapless.analyze import report
from gapless.errors import GaplessError, UsageError
from gapless.model.proof import Proof
from gapless.prove import compare

pytestmark = pytest.mark.usefixtures("nothing_counted")


def outcomes(result: Proof, outcome: str) -> dict[str, str]:
    return {case.name: case.why for case in result.cases if case.outcome == outcome}


def masked() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3 == 0


def selected(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


class TestBounded:
    def test_rows_and_their_number_are_the_same_as_rows(self) -> None:
        result = compare(selected, lambda x, mask: ops.compact(x, mask, size=8), masked, seconds=0)
        assert result.same, result
        assert result.gradients
        assert not outcomes(result, "outside")

    def test_a_wrong_row_and_a_wrong_number_are_not(self) -> None:
        def shifted(x: Tensor, mask: Tensor) -> Any:
            kept = ops.compact(x, mask, size=8)
            return kept._replace(values=kept.values.roll(1, 0))

        def fewer(x: Tensor, mask: Tensor) -> Any:
            kept = ops.compact(x, mask, size=8)
            return kept._replace(number=kept.number - 1)

        for wrong in (shifted, fewer):
            result = compare(selected, wrong, masked, only="as given")
            assert [case.name for case in result.failed] == ["as given"]

    def test_what_finds_no_room_is_outside(self) -> None:
        result = compare(selected, lambda x, mask: ops.compact(x, mask, size=3), masked, seconds=0)
        assert result.same
        assert outcomes(result, "outside")["full mask"] == "output has room for 3 rows of 8"
        assert result.verdict.startswith("The same within the contract (")
        assert "Outside the contract" in [table.title for table in report(result).tables]

    def test_distinct_values_with_their_counts(self) -> None:
        def original(x: Tensor) -> Any:
            return torch.unique(x, return_inverse=True, return_counts=True)

        def fixed(x: Tensor) -> Any:
            return ops.unique(x, size=6, return_inverse=True, return_counts=True)

        values = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0, 3.0])
        assert compare(original, fixed, values, only="as given").same

    def test_rows_alone_are_the_same_where_that_is_said(self) -> None:
        def fixed(x: Tensor, mask: Tensor) -> Tensor:
            return torch.nonzero_static(mask, size=5)

        def original(x: Tensor, mask: Tensor) -> Tensor:
            return torch.nonzero(mask)

        result = compare(original, fixed, masked, only="as given")
        assert result.failed[0].differences[0].kind == "shape"
        result = compare(original, fixed, masked, seconds=0, bounded=True)
        assert result.same
        assert set(outcomes(result, "outside")) == {"full mask"}


class TestContract:
    @staticmethod
    def mean(x: Tensor, mask: Tensor) -> Tensor:
        return x[mask].mean()

    @staticmethod
    def fixed(x: Tensor, mask: Tensor) -> Tensor:
        return ops.masked_mean(x, mask[:, None], empty=0.0)

    def test_where_it_does_not_hold_differences_are_apart(self) -> None:
        result = compare(self.mean, self.fixed, masked, seconds=0)
        assert not result
        result = compare(self.mean, self.fixed, masked, seconds=0, contract=lambda x, mask: mask.any())
        assert result.same
        assert outcomes(result, "outside") == {
            "empty mask": "the contract does not hold",
            "empty batch": "the contract does not hold",
        }
        assert result.verdict == (
            "The same within the contract (2 cases outside of it differ, `empty mask` first)"
        )

    def test_where_it_holds_a_difference_is_one(self) -> None:
        result = compare(
            self.mean, lambda x, mask: x.mean(), masked, seconds=0, contract=lambda x, mask: mask.any()
        )
        assert "as given" in [case.name for case in result.failed]
        assert "empty mask" in outcomes(result, "outside")

    def test_it_is_refused_where_it_is_none(self) -> None:
        with pytest.raises(UsageError, match="the contract is of type int and cannot be called"):
            compare(self.mean, self.fixed, masked, contract=3)  # type: ignore[arg-type]
        with pytest.raises(GaplessError, match="the contract raises ZeroDivisionError"):
            compare(self.mean, self.fixed, masked, seconds=0, contract=lambda x, mask: 1 / 0)
