"""Compare two values leaf by leaf: tolerances by type, NaN equal to NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gapless.model.proof import Difference
from gapless.prove import tree

_DEFAULTS = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute tolerance by type, those of `torch.testing.assert_close`."""

_SHARE_OF_ATOL_AT_ZERO = 1e-2
"""Share of the absolute tolerance that applies where everything expected is zero."""

_MAX_ERROR_RATIO = 3.0
"""How many times the original's own rounding error the other side may make."""

_ROUNDING_ULPS = 4.0
"""Units in the last place that are always allowed: a few roundings."""
_NUMBER_TYPES = (bool, int, float, complex)

Reference = Callable[[str], "torch.Tensor | None"]
"""Returns the same value in double precision, by path; None if there is none."""


@dataclass
class ResultComparison:
    """How to compare, and the results.

    `notes` are worth a word but are no differences; `remarks` are notes to repeat even if only one case shows
    them.
    """

    rtol: float | None = None
    atol: float | None = None
    reference: Reference = lambda path: None
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    call: int = 0

    def compare_values(self, where: str, before: Any, after: Any) -> None:
        """Compare two nested values; `where` names them."""
        shapes = dict(tree.containers(before, where)), dict(tree.containers(after, where))
        if shapes[0] != shapes[1]:
            place = next(
                path for path in (*shapes[0], *shapes[1]) if shapes[0].get(path) != shapes[1].get(path)
            )
            sides = [
                containers.get(place) or _describe_type(_value_at(value, where, place))
                for containers, value in zip(shapes, (before, after), strict=True)
            ]
            self._add(place, "structure", *sides)
            return
        leaves = zip(tree.leaves(before, where), tree.leaves(after, where), strict=True)
        for (path, old), (_, new) in leaves:
            self.compare_leaves(path, old, new)

    def compare_leaves(self, where: str, old: Any, new: Any) -> None:
        """Compare two leaves."""
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            self.compare_tensors(where, old, new)
            return
        if isinstance(old, torch.Tensor) != isinstance(new, torch.Tensor):
            self._compare_number_with_tensor(where, old, new)
            return
        if _is_array(old) and _is_array(new):
            try:
                self.compare_tensors(where, torch.as_tensor(old), torch.as_tensor(new))
            except TypeError:  # an array of objects
                self._compare_objects(where, old, new)
            return
        if type(old) in _NUMBER_TYPES and type(new) in _NUMBER_TYPES:
            self._compare_numbers(where, old, new)
            return
        self._compare_objects(where, old, new)

    def _compare_numbers(self, where: str, old: Any, new: Any) -> None:
        if type(old) is not type(new):
            self._add(where, "type", f"{type(old).__name__} {old}", f"{type(new).__name__} {new}")
            return
        # A Python number that was read off a tensor has the tensor's precision.
        kind = (
            torch.complex64 if isinstance(old, complex) else torch.float32 if isinstance(old, float) else None
        )
        if kind is None:
            if old != new:
                self._add(where, "value", str(old), str(new), largest=abs(old - new))
            return
        self._compare_close(
            where, torch.tensor(old, dtype=torch.complex128), torch.tensor(new, dtype=torch.complex128), kind
        )

    def _compare_number_with_tensor(self, where: str, old: Any, new: Any) -> None:
        """Compare a number with a tensor of one element, and note the change of type."""
        tensor, number = (old, new) if isinstance(old, torch.Tensor) else (new, old)
        if tensor.numel() != 1 or tensor.dim() or type(number) not in _NUMBER_TYPES:
            self._add(where, "type", _describe_type(old), _describe_type(new))
            return
        self.notes.append(f"{where} is a {_tensor_or_type(new)} instead of a {_tensor_or_type(old)}")
        sides = [torch.as_tensor(value).detach().cpu().to(torch.complex128) for value in (old, new)]
        self._compare_close(
            where, sides[0], sides[1], tensor.dtype if tensor.dtype in _DEFAULTS else torch.float32
        )

    def _compare_objects(self, where: str, old: Any, new: Any) -> None:
        if type(old) is not type(new):
            self._add(where, "type", _describe_type(old), _describe_type(new))
            return
        equal: Any = type(old).__eq__
        if equal is object.__eq__:
            if not callable(old):
                self.notes.append(f"{where} is not compared ({type(old).__name__})")
            return
        try:
            same = bool(old == new)
        except Exception:
            self.notes.append(f"{where} is not compared ({type(old).__name__})")
            return
        if not same:
            self._add(where, "value", _shorten(old), _shorten(new))

    # -- tensors -----------------------------------------------------------------------------------

    def compare_tensors(self, where: str, old: torch.Tensor, new: torch.Tensor) -> None:
        """Compare two tensors: shape, type, device and values; not strides."""
        for kind, was, now in (
            ("shape", tuple(old.shape), tuple(new.shape)),
            ("dtype", _dtype(old), _dtype(new)),
            ("device", str(old.device), str(new.device)),
            ("type", _layout(old), _layout(new)),
        ):
            if was != now:
                self._add(where, kind, str(was), str(now))
                return
        with torch.no_grad():
            self._compare_close(where, _to_dense(old), _to_dense(new), old.dtype)

    def _compare_close(self, where: str, old: torch.Tensor, new: torch.Tensor, dtype: torch.dtype) -> None:
        if not old.numel():
            return
        if not (dtype.is_floating_point or dtype.is_complex):
            wrong = old != new
            rtol = atol = 0.0
        else:
            old, new = _to_double(old), _to_double(new)
            rtol, atol = self._tolerances(dtype, old)
            wrong = ~torch.isclose(new, old, rtol=rtol, atol=atol, equal_nan=True)
            if wrong.any() and self._is_as_exact(where, old, new, dtype):
                return
        if wrong.any():
            self._add_value_difference(where, old, new, wrong, (rtol, atol))

    def _tolerances(self, dtype: torch.dtype, expected: torch.Tensor) -> tuple[float, float]:
        """Return both tolerances; the absolute one shrinks with the values, for small gradients."""
        rtol, atol = _DEFAULTS.get(dtype, (0.125, 1e-5))
        size = expected.abs()
        largest = float(size[torch.isfinite(size)].max()) if torch.isfinite(size).any() else 0.0
        scaled = atol * (min(1.0, largest) if largest else _SHARE_OF_ATOL_AT_ZERO)
        return self.rtol if self.rtol is not None else rtol, self.atol if self.atol is not None else scaled

    def _is_as_exact(self, where: str, old: torch.Tensor, new: torch.Tensor, dtype: torch.dtype) -> bool:
        """Whether the new result is about as near to double precision: sums in another order round
        differently."""
        if self.rtol is not None or self.atol is not None:
            return False
        exact = self.reference(where)
        if exact is None or exact.shape != old.shape:
            return False
        exact = _to_double(_to_dense(exact)).to(old.device)
        finite = torch.isfinite(old)
        if not torch.equal(finite, torch.isfinite(new)) or not finite.any():
            return False
        special = torch.isclose(new, old, equal_nan=True) | finite
        errors = [(result - exact).abs()[finite] for result in (old, new)]
        if not all(torch.isfinite(error).all() for error in errors):
            return False
        rounding = _ROUNDING_ULPS * torch.finfo(dtype).eps * exact.abs()[finite]
        return bool(special.all() and (errors[1] <= _MAX_ERROR_RATIO * errors[0].max() + rounding).all())

    def _add_value_difference(
        self,
        where: str,
        old: torch.Tensor,
        new: torch.Tensor,
        wrong: torch.Tensor,
        bounds: tuple[float, float],
    ) -> None:
        far = (_to_double(old) - _to_double(new)).abs()
        far = torch.where(wrong, far, -1.0).nan_to_num(nan=math.inf, posinf=math.inf)
        flat = int(far.argmax())
        at = (
            tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), old.shape))
            if old.dim()
            else ()
        )
        largest = float(far.flatten()[flat])
        sides = [side.flatten()[flat] for side in (old, new)]
        texts = [_format_element(side) for side in sides]
        if texts[0] == texts[1]:  # they differ behind the digits that are shown
            texts = [str(side.item()) for side in sides]
        self._add(
            where,
            "value",
            *texts,
            largest=largest if math.isfinite(largest) else -1.0,
            at=at,
            share=float(wrong.sum()) / wrong.numel(),
            rtol=bounds[0],
            atol=bounds[1],
        )

    def _add(self, where: str, kind: Any, before: str, after: str, **more: Any) -> None:
        self.differences.append(
            Difference(where=where, kind=kind, call=self.call, before=before, after=after, **more)
        )


def _to_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _to_dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _format_element(value: torch.Tensor) -> str:
    number = value.item()
    if isinstance(number, complex):
        return f"{number:.6g}" if number.imag else f"{number.real:.6g}"
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _describe_type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)} tensor {tuple(value.shape)}"
    return "None" if value is None else type(value).__name__


def _tensor_or_type(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "__array__")


def _value_at(value: Any, where: str, place: str) -> Any:
    """Return the part of `value` at `place`; None if there is none."""
    leaves = dict(tree.leaves(value, where))
    return leaves.get(place, value if place == where else None)
