"""How similar the structure of two images is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch, moved
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import EVERY, Sum
from gapless.metrics.regression.errors import widened
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

REDUCTIONS = ("elementwise_mean", "sum", "none", None)
BETAS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


class Window(NamedTuple):
    """What of an image is looked at together, and how its values are compared.

    `sigma` and `size` are those of each dimension, or one for all.
    """

    gaussian: bool
    sigma: float | tuple[float, ...]
    size: int | tuple[int, ...]
    range: float | tuple[float, float] | None
    k1: float
    k2: float

    def sizes(self, dims: int) -> tuple[int, ...]:
        """How wide it is in each of `dims` dimensions."""
        return tuple(self.size) if isinstance(self.size, tuple) else (self.size,) * dims

    def sigmas(self, dims: int) -> tuple[float, ...]:
        return tuple(self.sigma) if isinstance(self.sigma, tuple) else (self.sigma,) * dims

    def weights(self, dims: int) -> list[Tensor]:
        """One row of weights for each of `dims` dimensions; they multiply."""
        if not self.gaussian:
            return [torch.full((n,), 1 / n, dtype=torch.float64, device="cpu") for n in self.sizes(dims)]
        rows = []
        for sigma in self.sigmas(dims):
            reach = int(3.5 * sigma + 0.5)
            place = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")
            row = torch.exp(-((place / sigma) ** 2) / 2)
            rows.append(row / row.sum())
        return rows

    def check(self, dims: int) -> None:
        """Raises ValueError unless it fits images of so many dimensions."""
        for name, value in (("kernel_size", self.sizes(dims)), ("sigma", self.sigmas(dims))):
            if len(value) != dims:
                raise ValueError(
                    f"`{name}` has dimension {len(value)}, but expected to be two less that target "
                    f"dimensionality, which is: {dims + 2}"
                )
        if any(n % 2 == 0 or n <= 0 for n in self.sizes(dims)):
            raise ValueError(f"Expected `kernel_size` to have odd positive number. Got {self.sizes(dims)}.")
        if any(sigma <= 0 for sigma in self.sigmas(dims)):
            raise ValueError(f"Expected `sigma` to have positive number. Got {self.sigmas(dims)}.")


def images(batch: Batch) -> tuple[Tensor, Tensor]:
    """Both images of each pair, ``(N, C, H, W)`` or ``(N, C, D, H, W)``, float32 or wider."""
    preds, target = batch.args
    target = target.to(preds.dtype)
    checks.same_shape(preds, target)
    if preds.dim() not in (4, 5):
        raise ValueError(
            "Expected `preds` and `target` to have BxCxHxW or BxCxDxHxW shape."
            f" Got preds: {preds.shape} and target: {target.shape}."
        )
    return widened(preds), widened(target)


def blurred(image: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """``(N, C, ...)`` averaged with `weights`, one dimension after the other."""
    found, dims = image.flatten(0, 1).unsqueeze(1), len(weights)
    convolve = F.conv2d if dims == 2 else F.conv3d
    for dim, row in enumerate(weights):
        shape = [1, 1, *(len(row) if i == dim else 1 for i in range(dims))]
        found = convolve(found, row.to(found.dtype).reshape(shape))
    return found.reshape(*image.shape[:2], *found.shape[2:])


def compared(
    preds: Tensor, target: Tensor, window: Window, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Similarity, and that of contrast and structure alone, at each place; of the images' size."""
    dims = preds.dim() - 2
    spread: Any = window.range
    if spread is None:
        spread = torch.maximum(preds.max() - preds.min(), target.max() - target.min())
    elif isinstance(spread, tuple):
        preds, target = preds.clamp(*spread), target.clamp(*spread)
        spread = spread[1] - spread[0]
    c1, c2 = (window.k1 * spread) ** 2, (window.k2 * spread) ** 2
    reach = reaches(weights)
    edges = [side for n in reversed(reach) for side in (n, n)]
    both = F.pad(torch.cat((preds, target)), edges, mode="reflect")
    first, second = both.chunk(2)
    means = blurred(torch.cat((both, both * both, first * second)), weights).split(len(preds))
    assert len(reach) == dims
    product, squares = means[0] * means[1], means[0].square() + means[1].square()
    variance = (means[2] - means[0].square()).clamp(min=0) + (means[3] - means[1].square()).clamp(min=0)
    contrast = (2 * (means[4] - product) + c2) / (variance + c2)
    return (2 * product + c1) / (squares + c1) * contrast, contrast


def reaches(weights: Sequence[Tensor]) -> list[int]:
    """How far a window reaches to either side in each dimension."""
    return [(len(row) - 1) // 2 for row in weights]


def inner(image: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """`image` without the places whose window reaches over the edge."""
    for dim, n in enumerate(reaches(weights)):
        image = image.narrow(dim + 2, n, image.shape[dim + 2] - 2 * n)
    return image


def per_image(values: Tensor) -> Tensor:
    """``(N,)``: means."""
    return values.flatten(1).mean(1)


class Weights:
    """The weights of a window, sent to each device once."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._held: dict[tuple[torch.device, int], list[Tensor]] = {}

    def on(self, device: torch.device, dims: int) -> list[Tensor]:
        """Those of images of so many dimensions; raises ValueError where the window does not fit these."""
        key = (device, dims)
        if key not in self._held:
            self.window.check(dims)
            rows = self.window.weights(dims)
            with torch.inference_mode(False):
                self._held[key] = [moved(row.to(storable(row.dtype, device)), device) for row in rows]
        return self._held[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.window == other.window

    def __hash__(self) -> int:
        return hash(self.window)

    def __reduce__(self) -> Any:
        return Weights, (self.window,)


class How(NamedTuple):
    """How a pair of images becomes a similarity: at one scale, or with `betas` at one for each of them.

    `more` is ``"image"`` for the similarity at each place, ``"contrast"`` for that of contrast alone.
    """

    more: str | None = None
    betas: tuple[float, ...] = ()
    normalize: str | None = None

    def found(
        self, preds: Tensor, target: Tensor, window: Window, weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """``(N,)``: similarities; and what else is asked for."""
        if self.betas:
            return self._at_scales(preds, target, window, weights), None
        similar, contrast = compared(preds, target, window, weights)
        if self.more == "contrast":
            return per_image(similar), per_image(inner(contrast, weights))
        return per_image(similar), similar if self.more == "image" else None

    def _at_scales(self, preds: Tensor, target: Tensor, window: Window, weights: Sequence[Tensor]) -> Tensor:
        dims = preds.dim() - 2
        check_scales(preds, window.sizes(dims), len(self.betas))
        halved = F.avg_pool2d if dims == 2 else F.avg_pool3d
        product: Any = 1.0
        for scale, beta in enumerate(self.betas):
            if scale:
                preds, target = halved(preds, 2), halved(target, 2)
            similar, contrast = compared(preds, target, window, weights)
            last = scale == len(self.betas) - 1
            value = per_image(similar if last else inner(contrast, weights))
            if self.normalize is not None:
                value = value.relu() if self.normalize == "relu" else (value + 1) / 2
            product = product * value**beta
        return torch.as_tensor(product)


def similarities(batch: Batch, weights: Weights, how: How) -> tuple[Tensor, Tensor | None]:
    """``(N,)``: the similarity of each pair, and what else is asked for."""
    preds, target = batch.derive(images)
    return how.found(preds, target, weights.window, weights.on(preds.device, preds.dim() - 2))


def similarity(batch: Batch, weights: Weights, how: How) -> Tensor:
    """The first of both; nothing of no pairs."""
    some, *_ = batch.args
    found: Tensor = batch.derive(similarities, weights, how)[0] if len(some) else some.new_zeros(0)
    return found


class EverySimilarity(Rows):
    """The similarity of each pair, and what else is asked for."""

    def __init__(self, weights: Weights, how: How, capacity: int | None) -> None:
        self.weights = weights
        self.how = how
        columns = {"value": None, **({"more": None} if how.more else {})}
        super().__init__((weights, how), columns, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        if len(batch.args[0]):
            value, more = batch.derive(similarities, self.weights, self.how)
            self.append(value=value, **({} if more is None else {"more": more}))


def check_scales(preds: Tensor, sizes: tuple[int, ...], scales: int) -> None:
    """Raises ValueError where images are too small for so many scales."""
    least = 2**scales
    if preds.shape[-1] < least or preds.shape[-2] < least:
        raise ValueError(
            f"For a given number of `betas` parameters {scales}, the image height and width dimensions must"
            f" be larger than or equal to {least}."
        )
    shrunk = max(1, scales - 1) ** 2
    for dim, name, size in ((-2, "height", sizes[0]), (-1, "width", sizes[1])):
        if preds.shape[dim] // shrunk <= size - 1:
            raise ValueError(
                f"For a given number of `betas` parameters {scales} and kernel size {size},"
                f" the image {name} must be larger than {(size - 1) * shrunk}."
            )


class SimilarityMetric(Metric, abstract=True):
    """A similarity of images, reduced over pairs.

    Args:
        gaussian_kernel: whether a window's weights fall off as a normal distribution; else all are equal.
        sigma: the width of the normal distribution, for each dimension or for all.
        kernel_size: the width of a window of equal weights, for each dimension or for all.
        reduction: ``"elementwise_mean"`` or ``"sum"`` over pairs, or ``"none"`` or None for a value per pair.
        data_range: the range of values; a tuple of its bounds clamps values to them; None for that of each
            batch.
        k1: how much of the range is added to products of means.
        k2: the same for variances.
        capacity: where every pair is kept, the number of pairs there is room for, in fixed storage.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = True
    higher_is_better = True
    beyond = "capacity"
    similarity: Any
    reduction: str | None

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images and what they should be like, ``(N, C, H, W)`` or ``(N, C, D, H, W)``."""
        self.observe(preds, target)

    def _compare(self, window: Window, how: How, reduction: str | None, capacity: int | None) -> None:
        checks.one_of("reduction", reduction, REDUCTIONS)
        self.reduction = reduction
        weights, every = Weights(window), reduction in EVERY or how.more is not None
        self.use(
            "similarity",
            EverySimilarity(weights, how, capacity) if every else Sum(similarity, (weights, how)),
        )

    def value(self) -> Any:
        part = self.similarity
        if isinstance(part, Sum):
            return part.reduced(self.reduction).to(self.dtype)
        part.rows_needed()
        found = part.known("value").clone()
        if self.reduction not in EVERY:
            found = found.sum() if self.reduction == "sum" else found.mean()
        return (found.to(self.dtype), part.known("more").clone()) if part.how.more else found.to(self.dtype)


def fixed(value: Any) -> Any:
    """A sequence as a tuple; what is none as it is."""
    return tuple(value) if isinstance(value, Sequence) else value


class StructuralSimilarityIndexMeasure(SimilarityMetric):
    """The similarity of luminance, contrast and structure, in windows around each place.

    Args:
        return_full_image: whether the similarity at each place is returned, too.
        return_contrast_sensitivity: whether that of contrast alone is returned, too.
    """

    torchmetrics_file = "ssim"
    torchmetrics_slots = "similarity:f=sum total:f=seen"

    def __init__(
        self,
        gaussian_kernel: bool = True,
        sigma: float | Sequence[float] = 1.5,
        kernel_size: int | Sequence[int] = 11,
        reduction: str | None = "elementwise_mean",
        data_range: float | tuple[float, float] | None = None,
        k1: float = 0.01,
        k2: float = 0.03,
        return_full_image: bool = False,
        return_contrast_sensitivity: bool = False,
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        if return_full_image and return_contrast_sensitivity:
            raise ValueError(
                "Arguments `return_full_image` and `return_contrast_sensitivity` are mutually exclusive."
            )
        more = "image" if return_full_image else "contrast" if return_contrast_sensitivity else None
        window = Window(gaussian_kernel, fixed(sigma), fixed(kernel_size), data_range, k1, k2)
        self._compare(window, How(more), reduction, capacity)


class MultiScaleStructuralSimilarityIndexMeasure(SimilarityMetric):
    """The product of the similarities of contrast at several scales, and of all at the coarsest.

    Args:
        betas: the exponent of each scale, of which each has half the size of the one before.
        normalize: ``"relu"`` makes negative similarities 0, ``"simple"`` moves them from -1 … 1 to 0 … 1.
    """

    torchmetrics_file = "ssim"
    torchmetrics_slots = "similarity:f=sum total:f=seen"

    def __init__(
        self,
        gaussian_kernel: bool = True,
        kernel_size: int | Sequence[int] = 11,
        sigma: float | Sequence[float] = 1.5,
        reduction: str | None = "elementwise_mean",
        data_range: float | tuple[float, float] | None = None,
        k1: float = 0.01,
        k2: float = 0.03,
        betas: tuple[float, ...] = BETAS,
        normalize: str | None = "relu",
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        several = isinstance(kernel_size, Sequence)
        if not (several or isinstance(kernel_size, int)) or (
            isinstance(kernel_size, Sequence)
            and (len(kernel_size) not in (2, 3) or not all(isinstance(n, int) for n in kernel_size))
        ):
            raise ValueError(
                "Argument `kernel_size` expected to be an sequence of size 2 or 3 where each element is an"
                f" int, or a single int. Got {kernel_size}"
            )
        if not isinstance(betas, tuple):
            raise ValueError("Argument `betas` is expected to be of a type tuple.")
        if not all(isinstance(beta, float) for beta in betas):
            raise ValueError("Argument `betas` is expected to be a tuple of floats.")
        if normalize and normalize not in ("relu", "simple"):
            raise ValueError("Argument `normalize` to be expected either `None` or one of 'relu' or 'simple'")
        window = Window(gaussian_kernel, fixed(sigma), fixed(kernel_size), data_range, k1, k2)
        self._compare(window, How(None, betas, normalize or None), reduction, capacity)
