"""The shapes of an operator's results, from its rule for tensors without data."""

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
_MAX_CACHED = 100_000
"""Calls whose shapes are kept, to bound memory where sizes change in every step."""


class ShapeUnknown(Exception):
    """The operator has no rule for tensors without data, or it rejects these; `cause` is its error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


DISCRETE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types of tensors that select or count."""
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
"""Operators whose shape rules ignore the channels-last layout of their kernels."""
_LOSSES_KEEPING_ELEMENTS = frozenset(
    {"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"}
)
"""Losses whose scalar result keeps the memory of all its elements."""
_TRIED_OPERATORS = frozenset(
    {"_linalg_svd", "linalg_eig", "_fft_c2r", "col2im", "max_unpool2d", "nonzero_static"}
)
"""Operators whose kernels use other strides than their shape rules: they are tried on zeros."""
_MAX_TRIED_ELEMENTS = 1 << 14
"""Elements up to which an operator is tried on zeros: cheap enough."""


class NewTensor:
    """A result that is a new tensor; `room` is the elements of its memory if more than its own."""

    __slots__ = ("dtype", "numel", "room", "size", "stride")

    def __init__(self, meta: Tensor, room: int = 0) -> None:
        self.size, self.stride, self.dtype = tuple(meta.size()), meta.stride(), meta.dtype
        self.numel = meta.numel()
        self.room = room if room > self.numel else 0

    @property
    def is_discrete(self) -> bool:
        """Whether it holds integers, or several bools."""
        return self.dtype in DISCRETE and self.numel > (self.dtype is torch.bool)


class ResultShapes:
    """The results of a call: `items` are `NewTensor`, lists of these, positions of returned arguments
    (`int`), or other values in a 1-tuple.

    `kind` is their container, None for a single one. `aliases` says that one shares memory with an argument
    although the schema does not say so: then the call is made unchanged. `resized` are the sizes
    of written arguments that change. `has_discrete` says that a result may select or count.
    """

    __slots__ = ("aliases", "has_discrete", "items", "kind", "numel", "resized")

    def __init__(
        self, kind: type | None, items: list[Any], aliases: bool, resized: dict[int, NewTensor]
    ) -> None:
        self.kind, self.items, self.aliases, self.resized = kind, items, aliases, resized
        news = [part for item in items for part in (item if type(item) is list else (item,))]
        self.numel = sum(new.numel for new in news if type(new) is NewTensor)
        self.has_discrete = any(type(new) is NewTensor and new.is_discrete for new in news)


class ShapeCache:
    """Infers result shapes, and caches them by call."""

    def __init__(self) -> None:
        self._cache: dict[Any, ResultShapes | ShapeUnknown] = {}
        self.hits = self.misses = 0

    def of(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ResultShapes:
        """Return the shapes of the results of a call.

        Raises:
            ShapeUnknown: the shapes depend on values, or the arguments do not fit.
        """
        key: Any = [id(kind)]
        try:
            for value in args:
                _add_to_key(key, value, kind.pointwise)
            for name, value in kwargs.items():
                key.append(name)
                _add_to_key(key, value, kind.pointwise)
            key = tuple(key)
            shapes = self._cache.get(key)
        except TypeError:  # something that cannot be a key
            key = shapes = None
        except RuntimeError as error:  # a sparse tensor, which has no strides
            raise ShapeUnknown(NotImplementedError(str(error))) from None
        if shapes is None:
            self.misses += 1
            with plain_sizes():
                shapes = _infer_shapes(kind, args, kwargs)
            if key is not None and len(self._cache) < _MAX_CACHED:
                self._cache[key] = shapes
        else:
            self.hits += 1
        if isinstance(shapes, ShapeUnknown):
            raise ShapeUnknown(
                shapes.cause
            )  # each time another: one that is raised holds the tensors of its callers
        return shapes


def _add_to_key(key: list[Any], value: Any, types: bool) -> None:
    """Add what determines shapes to the key; of numbers only their type if `types`."""
    kind = type(value)
    if kind is Tensor or kind is Parameter or isinstance(value, Tensor):
        key.append(value.shape)
        key.append(value.stride())
        key.append(value.dtype)
        if value.is_conj() or value.is_neg():
            key.append("conjugated")
    elif kind is list or kind is tuple:
        key.append(len(value))
        for part in value:
            _add_to_key(key, part, types)
    elif isinstance(value, torch.Generator):
        key.append("generator")
    elif types and (kind is float or kind is int):
        key.append(kind)
    else:
        key.append(kind)
        key.append(value)


def _infer_shapes(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ResultShapes | ShapeUnknown:
    positions: dict[int, int] = {}

    def remove_data(tensor: Tensor) -> Tensor:
        empty = without_data(tensor)
        positions[id(empty)] = len(empties)
        empties.append(empty)
        return empty

    empties: list[Tensor] = []
    try:
        emptied_args = [_without_generator(arg) for arg in trees.map_tensors(tuple(args), remove_data)]
        options = {
            name: _without_generator(option)
            for name, option in trees.map_tensors(dict(kwargs), remove_data).items()
        }
        if kind.makes and (options.get("device") is not None or not empties):
            options["device"] = _META
        if options.get("pin_memory"):
            options["pin_memory"] = False
        before = [(empty.shape, empty.stride()) for empty in empties]
        out = _call_without_data(kind, emptied_args, options)
    except Exception as error:  # rules may be anybody's code
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return ShapeUnknown(error)
    single = not isinstance(out, (list, tuple))
    flat = [out] if single else list(out)
    if any(isinstance(result, Tensor) and result.layout is not torch.strided for result in flat):
        return ShapeUnknown(NotImplementedError("a sparse result"))
    reduced = kind.base in _LOSSES_KEEPING_ELEMENTS and len(empties) > 1 and flat[0].dim() == 0
    room = math.prod(torch.broadcast_shapes(*(empty.shape for empty in empties[:2]))) if reduced else 0
    shared = {empty.untyped_storage()._cdata for empty in empties}
    items: list[Any] = []
    aliases = False
    for result in flat:
        if isinstance(result, (list, tuple)):
            if any(not isinstance(part, Tensor) or id(part) in positions for part in result):
                return ShapeUnknown(NotImplementedError("other lists than of new tensors"))
            items.append([NewTensor(part) for part in result])
        elif not isinstance(result, Tensor):
            items.append((result,))
        elif id(result) in positions:
            items.append(positions[id(result)])
        elif result.device.type != "meta" and kind.kernel is None:
            return ShapeUnknown(NotImplementedError("a result with data"))
        else:
            aliases = aliases or result.untyped_storage()._cdata in shared
            items.append(NewTensor(result, room))
    resized = {
        n: NewTensor(empty) for n, empty in enumerate(empties) if (empty.shape, empty.stride()) != before[n]
    }
    shapes = ResultShapes(None if single else type(out), items, aliases, resized)
    empty = shapes.numel == 0 and all(
        type(item) is NewTensor for item in items
    )  # strides of those are anybody's
    if (kind.base in _TRIED_OPERATORS or empty) and sum(
        empty.numel() for empty in empties
    ) <= _MAX_TRIED_ELEMENTS:
        return _try_on_zeros(kind, args, kwargs) or shapes
    return shapes


def _try_on_zeros(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ResultShapes | None:
    """Return the shapes of the results for zeros; None if the kernel fails or returns no tensors."""
    if kind.makes or kind.written:
        return None
    try:
        out = kind.func(*trees.map_tensors(tuple(args), _zeros), **trees.map_tensors(dict(kwargs), _zeros))
    except (RuntimeError, ValueError, IndexError):
        return None
    flat = [out] if isinstance(out, Tensor) else list(out)
    if not flat or not all(isinstance(result, Tensor) for result in flat):
        return None
    return ResultShapes(
        None if isinstance(out, Tensor) else type(out), [NewTensor(result) for result in flat], False, {}
    )


def _zeros(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()


def _call_without_data(kind: Any, args: list[Any], options: dict[str, Any]) -> Any:
    if kind.kernel is not None:
        try:
            return kind.kernel(*args, **options)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass  # it reads values
    out = kind.func(*args, **options)
    return _with_channels_last(kind.base, args, out) if kind.base in _CONVOLUTIONS else out


def _with_channels_last(base: str, args: Any, out: Any) -> Any:
    """Return the results of a convolution, channels-last if its image or weight is."""
    image, weight = args[1:3] if base == "convolution_backward" else args[:2]
    if image.dtype == torch.float64 or not (has_channels_last(image) or has_channels_last(weight)):
        return out

    def lay_out(result: Any) -> Any:
        image = isinstance(result, Tensor) and result.dim() == 4
        return result.to(memory_format=torch.channels_last) if image else result

    return lay_out(out) if isinstance(out, Tensor) else tuple(map(lay_out, out))


def without_data(tensor: Tensor) -> Tensor:
    """Return a meta tensor with the size, strides and type of `tensor`.

    Raises:
        NotImplementedError: `tensor` is not strided.
    """
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"a {tensor.layout} tensor")
    empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
    empty = empty.conj() if tensor.is_conj() else empty
    return neg_view(empty) if tensor.is_neg() else empty


def _without_generator(value: Any) -> Any:
    return None if isinstance(value, torch.Generator) else value
