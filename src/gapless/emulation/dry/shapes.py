"""What the results of an operator look like: asked of its rule for tensors without data."""

from __future__ import annotations

import math
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry.plain import plain_sizes
from gapless.emulation.support.layout import has_channels_last
from gapless.torch_internals import neg_view

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_META = torch.device("meta")
_MOST = 100_000


class Unshaped(Exception):
    """The operator has no rule for tensors without data, or it refuses these; `cause` is what it said."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


DISCRETE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types of what chooses or counts."""
_IMAGES = frozenset({"convolution", "convolution_backward"})
"""Operators whose rules for tensors without data forget which dimension their kernels have last."""
_REDUCED = frozenset({"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"})
"""Losses that are reduced within the memory of what is reduced, and keep all of it."""
_BY_KERNEL = frozenset({"_linalg_svd", "linalg_eig", "_fft_c2r", "col2im", "max_unpool2d", "nonzero_static"})
"""Operators whose kernels lay their results out otherwise than their rules for tensors without data."""
_TRIED = 1 << 14
"""Elements up to which an operator is tried on zeros."""


class New:
    """A result that is a new tensor, in memory with `room` for so many elements."""

    __slots__ = ("dtype", "numel", "room", "size", "stride")

    def __init__(self, meta: Tensor, room: int = 0) -> None:
        self.size, self.stride, self.dtype = tuple(meta.size()), meta.stride(), meta.dtype
        self.numel = meta.numel()
        self.room = room if room > self.numel else 0

    @property
    def counts(self) -> bool:
        """Whether it holds whole numbers, or bools of which there are several."""
        return self.dtype in DISCRETE and self.numel > (self.dtype is torch.bool)


class Results:
    """What a call gives: `items` are `New`, lists of these, positions of arguments (`int`), or values as they
    are in a tuple.

    `kind` is the container they come in, None for a single one. `aliases` says that one of them shares memory
    with an argument though the schema does not tell: then the call is made as it is. `resized` are the sizes
    of what is written, where they change. `discrete` says that one of them may choose or count something.
    """

    __slots__ = ("aliases", "discrete", "items", "kind", "numel", "resized")

    def __init__(self, kind: type | None, items: list[Any], aliases: bool, resized: dict[int, New]) -> None:
        self.kind, self.items, self.aliases, self.resized = kind, items, aliases, resized
        news = [one for item in items for one in (item if type(item) is list else (item,))]
        self.numel = sum(one.numel for one in news if type(one) is New)
        self.discrete = any(type(one) is New and one.counts for one in news)


class Shapes:
    """Answers from memory where an equal call was made before."""

    def __init__(self) -> None:
        self._known: dict[Any, Results | Unshaped] = {}
        self.hits = self.misses = 0

    def of(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
        """The results of calling the operator with these.

        Raises:
            Unshaped: there is no telling without values, or the arguments do not fit.
        """
        key: Any = [id(kind)]
        try:
            for one in args:
                _add(key, one, kind.pointwise)
            for name, one in kwargs.items():
                key.append(name)
                _add(key, one, kind.pointwise)
            key = tuple(key)
            found = self._known.get(key)
        except TypeError:  # something that cannot be a key
            key = found = None
        except RuntimeError as error:  # a sparse tensor, which has no strides
            raise Unshaped(NotImplementedError(str(error))) from None
        if found is None:
            self.misses += 1
            with plain_sizes():
                found = _asked(kind, args, kwargs)
            if key is not None and len(self._known) < _MOST:
                self._known[key] = found
        else:
            self.hits += 1
        if isinstance(found, Unshaped):
            raise Unshaped(
                found.cause
            )  # each time another: one that is raised holds the tensors of its callers
        return found


def _add(key: list[Any], value: Any, types: bool) -> None:
    """Add what decides of shapes to the key; of numbers only their `types`, where that is enough."""
    kind = type(value)
    if kind is Tensor or kind is Parameter or isinstance(value, Tensor):
        key.append(value.shape)
        key.append(value.stride())
        key.append(value.dtype)
        if value.is_conj() or value.is_neg():
            key.append("conjugated")
    elif kind is list or kind is tuple:
        key.append(len(value))
        for one in value:
            _add(key, one, types)
    elif isinstance(value, torch.Generator):
        key.append("generator")
    elif types and (kind is float or kind is int):
        key.append(kind)
    else:
        key.append(kind)
        key.append(value)


def _asked(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results | Unshaped:
    given: dict[int, int] = {}

    def emptied(tensor: Tensor) -> Tensor:
        made = without_data(tensor)
        given[id(made)] = len(kept)
        kept.append(made)
        return made

    kept: list[Tensor] = []
    try:
        emptied_args = [_other(one) for one in trees.mapped(tuple(args), emptied)]
        options = {name: _other(one) for name, one in trees.mapped(dict(kwargs), emptied).items()}
        if kind.makes and (options.get("device") is not None or not kept):
            options["device"] = _META
        if options.get("pin_memory"):
            options["pin_memory"] = False
        before = [(one.shape, one.stride()) for one in kept]
        out = _called(kind, emptied_args, options)
    except Exception as error:  # rules are everybody's code
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return Unshaped(error)
    single = not isinstance(out, (list, tuple))
    flat = [out] if single else list(out)
    if any(isinstance(one, Tensor) and one.layout is not torch.strided for one in flat):
        return Unshaped(NotImplementedError("a sparse result"))
    reduced = kind.base in _REDUCED and len(kept) > 1 and flat[0].dim() == 0
    room = math.prod(torch.broadcast_shapes(*(one.shape for one in kept[:2]))) if reduced else 0
    shared = {one.untyped_storage()._cdata for one in kept}
    items: list[Any] = []
    aliases = False
    for one in flat:
        if isinstance(one, (list, tuple)):
            if any(not isinstance(part, Tensor) or id(part) in given for part in one):
                return Unshaped(NotImplementedError("other lists than of new tensors"))
            items.append([New(part) for part in one])
        elif not isinstance(one, Tensor):
            items.append((one,))
        elif id(one) in given:
            items.append(given[id(one)])
        elif one.device.type != "meta" and kind.kernel is None:
            return Unshaped(NotImplementedError("a result with data"))
        else:
            aliases = aliases or one.untyped_storage()._cdata in shared
            items.append(New(one, room))
    resized = {n: New(one) for n, one in enumerate(kept) if (one.shape, one.stride()) != before[n]}
    found = Results(None if single else type(out), items, aliases, resized)
    empty = found.numel == 0 and all(type(one) is New for one in items)  # strides of those are anybody's
    if (kind.base in _BY_KERNEL or empty) and sum(one.numel() for one in kept) <= _TRIED:
        return _tried(kind, args, kwargs) or found
    return found


def _tried(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results | None:
    """What its kernel makes of zeros; None where it makes no tensors, or none of zeros."""
    if kind.makes or kind.written:
        return None
    try:
        out = kind.func(*trees.mapped(tuple(args), _zeros), **trees.mapped(dict(kwargs), _zeros))
    except (RuntimeError, ValueError, IndexError):
        return None
    flat = [out] if isinstance(out, Tensor) else list(out)
    if not flat or not all(isinstance(one, Tensor) for one in flat):
        return None
    return Results(None if isinstance(out, Tensor) else type(out), [New(one) for one in flat], False, {})


def _zeros(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()


def _called(kind: Any, args: list[Any], options: dict[str, Any]) -> Any:
    if kind.kernel is not None:
        try:
            return kind.kernel(*args, **options)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass  # it reads values
    out = kind.func(*args, **options)
    return _as_images(kind.base, args, out) if kind.base in _IMAGES else out


def _as_images(base: str, args: Any, out: Any) -> Any:
    """The results of a convolution, with channels last where its image or its weight has them so."""
    image, weight = args[1:3] if base == "convolution_backward" else args[:2]
    if image.dtype == torch.float64 or not (has_channels_last(image) or has_channels_last(weight)):
        return out

    def laid(one: Any) -> Any:
        image = isinstance(one, Tensor) and one.dim() == 4
        return one.to(memory_format=torch.channels_last) if image else one

    return laid(out) if isinstance(out, Tensor) else tuple(map(laid, out))


def without_data(tensor: Tensor) -> Tensor:
    """A tensor that looks like this one and has nothing in it.

    Raises:
        NotImplementedError: it is not strided.
    """
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"a {tensor.layout} tensor")
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
    made = made.conj() if tensor.is_conj() else made
    return neg_view(made) if tensor.is_neg() else made


def _other(value: Any) -> Any:
    return None if isinstance(value, torch.Generator) else value
