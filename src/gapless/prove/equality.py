"""Two values compared leaf by leaf: tolerances by type, NaN equal to NaN."""

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

_ZERO = 1e-2
"""Part of the absolute tolerance that is left where everything expected is zero."""

_AS_GOOD = 3.0
"""How many times the original's own rounding error the other may make."""

_ULPS = 4.0
_NUMBERS = (bool, int, float, complex)

Reference = Callable[[str], "torch.Tensor | None"]
"""The same value in double precision, by path; None where there is none."""


@dataclass
class Comparing:
    """How to compare, and what was found. `notes` are no differences but worth a word; `remarks` are
    those that a single case may be the only one to tell."""

    rtol: float | None = None
    atol: float | None = None
    reference: Reference = lambda path: None
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    call: int = 0

    def values(self, where: str, before: Any, after: Any) -> None:
        """Compare two nested values; `where` names them."""
        shapes = dict(tree.shape(before, where)), dict(tree.shape(after, where))
        if shapes[0] != shapes[1]:
            place = next(
                path for path in (*shapes[0], *shapes[1]) if shapes[0].get(path) != shapes[1].get(path)
            )
            sides = [
                one.get(place) or _kind(_at(value, where, place))
                for one, value in zip(shapes, (before, after), strict=True)
            ]
            self._add(place, "structure", *sides)
            return
        leaves = zip(tree.leaves(before, where), tree.leaves(after, where), strict=True)
        for (path, old), (_, new) in leaves:
            self.leaf(path, old, new)

    def leaf(self, where: str, old: Any, new: Any) -> None:
        """Compare two leaves."""
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            self.tensors(where, old, new)
            return
        if isinstance(old, torch.Tensor) != isinstance(new, torch.Tensor):
            self._mixed(where, old, new)
            return
        if _is_array(old) and _is_array(new):
            try:
                self.tensors(where, torch.as_tensor(old), torch.as_tensor(new))
            except TypeError:  # an array of objects
                self._plain(where, old, new)
            return
        if type(old) in _NUMBERS and type(new) in _NUMBERS:
            self._numbers(where, old, new)
            return
        self._plain(where, old, new)

    def _numbers(self, where: str, old: Any, new: Any) -> None:
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
        self._close(
            where, torch.tensor(old, dtype=torch.complex128), torch.tensor(new, dtype=torch.complex128), kind
        )

    def _mixed(self, where: str, old: Any, new: Any) -> None:
        """A number on one side and a tensor of one element on the other are one value, which is told."""
        tensor, number = (old, new) if isinstance(old, torch.Tensor) else (new, old)
        if tensor.numel() != 1 or tensor.dim() or type(number) not in _NUMBERS:
            self._add(where, "type", _kind(old), _kind(new))
            return
        self.notes.append(f"{where} is a {_word(new)} instead of a {_word(old)}")
        sides = [torch.as_tensor(one).detach().cpu().to(torch.complex128) for one in (old, new)]
        self._close(where, sides[0], sides[1], tensor.dtype if tensor.dtype in _DEFAULTS else torch.float32)

    def _plain(self, where: str, old: Any, new: Any) -> None:
        if type(old) is not type(new):
            self._add(where, "type", _kind(old), _kind(new))
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
            self._add(where, "value", _short(old), _short(new))

    # -- tensors -----------------------------------------------------------------------------------

    def tensors(self, where: str, old: torch.Tensor, new: torch.Tensor) -> None:
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
            self._close(where, _dense(old), _dense(new), old.dtype)

    def _close(self, where: str, old: torch.Tensor, new: torch.Tensor, dtype: torch.dtype) -> None:
        if not old.numel():
            return
        if not (dtype.is_floating_point or dtype.is_complex):
            wrong = old != new
            rtol = atol = 0.0
        else:
            old, new = _wide(old), _wide(new)
            rtol, atol = self._tolerances(dtype, old)
            wrong = ~torch.isclose(new, old, rtol=rtol, atol=atol, equal_nan=True)
            if wrong.any() and self._as_good(where, old, new, dtype):
                return
        if wrong.any():
            self._differs(where, old, new, wrong, (rtol, atol))

    def _tolerances(self, dtype: torch.dtype, expected: torch.Tensor) -> tuple[float, float]:
        """The absolute one shrinks with the values: small gradients are compared as strictly as large."""
        rtol, atol = _DEFAULTS.get(dtype, (0.125, 1e-5))
        size = expected.abs()
        largest = float(size[torch.isfinite(size)].max()) if torch.isfinite(size).any() else 0.0
        scaled = atol * (min(1.0, largest) if largest else _ZERO)
        return self.rtol if self.rtol is not None else rtol, self.atol if self.atol is not None else scaled

    def _as_good(self, where: str, old: torch.Tensor, new: torch.Tensor, dtype: torch.dtype) -> bool:
        """Whether both are as near to the result in double precision: sums in another order round apart."""
        if self.rtol is not None or self.atol is not None:
            return False
        exact = self.reference(where)
        if exact is None or exact.shape != old.shape:
            return False
        exact = _wide(_dense(exact)).to(old.device)
        finite = torch.isfinite(old)
        if not torch.equal(finite, torch.isfinite(new)) or not finite.any():
            return False
        special = torch.isclose(new, old, equal_nan=True) | finite
        errors = [(one - exact).abs()[finite] for one in (old, new)]
        if not all(torch.isfinite(error).all() for error in errors):
            return False
        rounding = _ULPS * torch.finfo(dtype).eps * exact.abs()[finite]
        return bool(special.all() and (errors[1] <= _AS_GOOD * errors[0].max() + rounding).all())

    def _differs(
        self,
        where: str,
        old: torch.Tensor,
        new: torch.Tensor,
        wrong: torch.Tensor,
        bounds: tuple[float, float],
    ) -> None:
        far = (_wide(old) - _wide(new)).abs()
        far = torch.where(wrong, far, -1.0).nan_to_num(nan=math.inf, posinf=math.inf)
        flat = int(far.argmax())
        at = (
            tuple(int(one) for one in torch.unravel_index(torch.tensor(flat), old.shape)) if old.dim() else ()
        )
        largest = float(far.flatten()[flat])
        self._add(
            where,
            "value",
            _number(old.flatten()[flat]),
            _number(new.flatten()[flat]),
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


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _layout(tensor: torch.Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")


def _number(value: torch.Tensor) -> str:
    number = value.item()
    if isinstance(number, complex):
        return f"{number:.6g}" if number.imag else f"{number.real:.6g}"
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)} tensor {tuple(value.shape)}"
    return "None" if value is None else type(value).__name__


def _word(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "__array__")


def _at(value: Any, where: str, place: str) -> Any:
    """The part of `value` at `place`; None where there is none."""
    found = dict(tree.leaves(value, where))
    return found.get(place, value if place == where else None)
