"""Structural similarity (SSIM) of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch, move_to_device
from gapless.metrics.image.noise import REDUCTIONS
from gapless.metrics.metric import Metric
from gapless.metrics.reduced import UNREDUCED, Sum
from gapless.metrics.regression.errors import to_wide_float
from gapless.metrics.rows import Rows
from gapless.metrics.statistic import storable

DEFAULT_BETAS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales, from Wang, Simoncelli and Bovik (2003), as in TorchMetrics."""
_MAX_ELEMENTS = 2**31 - 1
"""Elements that a GPU convolves channel by channel in one call: its kernels index with 32 bits."""


class SsimWindow(NamedTuple):
    """The sliding window of SSIM, and the constants by which its values are compared.

    `sigma` and `size` hold a value per dimension, or one for all; `range` is the range of pixel values.
    """

    gaussian: bool
    sigma: float | tuple[float, ...]
    size: int | tuple[int, ...]
    range: float | tuple[float, float] | None
    k1: float
    k2: float

    def sizes(self, dims: int) -> tuple[int, ...]:
        """Return the window's width in each of `dims` dimensions."""
        return tuple(self.size) if isinstance(self.size, tuple) else (self.size,) * dims

    def sigmas(self, dims: int) -> tuple[float, ...]:
        return tuple(self.sigma) if isinstance(self.sigma, tuple) else (self.sigma,) * dims

    def weights(self, dims: int) -> list[Tensor]:
        """Return one row of weights per dimension; the window is their outer product."""
        if not self.gaussian:
            return [torch.full((n,), 1 / n, dtype=torch.float64, device="cpu") for n in self.sizes(dims)]
        rows = []
        for sigma in self.sigmas(dims):
            reach = int(3.5 * sigma + 0.5)  # 3.5 standard deviations, rounded, as in TorchMetrics
            offset = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")
            row = torch.exp(-((offset / sigma) ** 2) / 2)
            rows.append(row / row.sum())
        return rows

    def check(self, dims: int) -> None:
        """Raise ValueError unless the window fits images of `dims` spatial dimensions."""
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


def paired_images(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return predictions and targets, ``(N, C, H, W)`` or ``(N, C, D, H, W)``, as float32 or wider."""
    preds, target = batch.args
    target = target.to(preds.dtype)
    checks.check_same_shape(preds, target)
    if preds.dim() not in (4, 5):
        raise ValueError(
            "Expected `preds` and `target` to have BxCxHxW or BxCxDxHxW shape."
            f" Got preds: {preds.shape} and target: {target.shape}."
        )
    return to_wide_float(preds), to_wide_float(target)


def blur(image: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return images ``(N, C, ...)`` averaged with `weights`, one dimension after the other."""
    planes = image.flatten(0, 1)
    at_once = max(_MAX_ELEMENTS // max(math.prod(planes.shape[1:]), 1), 1)
    calls = -(-len(planes) // at_once)
    parts = [_blur_planes(part, weights) for part in planes.tensor_split(calls)]
    result = torch.cat(parts) if len(parts) > 1 else parts[0]
    return result.reshape(*image.shape[:2], *result.shape[1:])


def _blur_planes(planes: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return `planes`, ``(N, ...)``, averaged with `weights`.

    Each is a channel of its own: a GPU convolves channels one by one in full precision, and a single one by
    cuDNN in TF32, whose rounding the differences of squares in a similarity make a thousand times larger.
    """
    result, channels, dims = planes.unsqueeze(0), len(planes), len(weights)
    convolve = F.conv2d if dims == 2 else F.conv3d
    for dim, row in enumerate(weights):
        shape = [1, 1, *(len(row) if i == dim else 1 for i in range(dims))]
        kernels = row.to(result.dtype).reshape(shape).expand(channels, *shape[1:])
        result = convolve(result, kernels, groups=channels)
    return result[0]


def compare_images(
    preds: Tensor, target: Tensor, window: SsimWindow, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the similarity at each pixel, and that of contrast and structure alone, in the images' size."""
    dims = preds.dim() - 2
    value_range: Any = window.range
    if value_range is None:
        value_range = torch.maximum(preds.max() - preds.min(), target.max() - target.min())
    elif isinstance(value_range, tuple):
        preds, target = preds.clamp(*value_range), target.clamp(*value_range)
        value_range = value_range[1] - value_range[0]
    c1, c2 = (window.k1 * value_range) ** 2, (window.k2 * value_range) ** 2
    reach = window_reaches(weights)
    edges = [side for n in reversed(reach) for side in (n, n)]
    both = F.pad(torch.cat((preds, target)), edges, mode="reflect")
    first, second = both.chunk(2)
    means = blur(torch.cat((both, both * both, first * second)), weights).split(len(preds))
    assert len(reach) == dims
    product, squares = means[0] * means[1], means[0].square() + means[1].square()
    variance = (means[2] - means[0].square()).clamp(min=0) + (means[3] - means[1].square()).clamp(min=0)
    contrast = (2 * (means[4] - product) + c2) / (variance + c2)
    return (2 * product + c1) / (squares + c1) * contrast, contrast


def window_reaches(weights: Sequence[Tensor]) -> list[int]:
    """Return how far the window reaches to either side in each dimension."""
    return [(len(row) - 1) // 2 for row in weights]


def crop_edges(image: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return `image` without the pixels whose window reaches over the edge."""
    for dim, n in enumerate(window_reaches(weights)):
        image = image.narrow(dim + 2, n, image.shape[dim + 2] - 2 * n)
    return image


def mean_per_image(values: Tensor) -> Tensor:
    """Return the mean of each image, ``(N,)``."""
    return values.flatten(1).mean(1)


class WindowWeights:
    """The weights of a window, copied to each device once."""

    def __init__(self, window: SsimWindow) -> None:
        self.window = window
        self._held: dict[tuple[torch.device, int], list[Tensor]] = {}

    def on(self, device: torch.device, dims: int) -> list[Tensor]:
        """Return the weights for images of `dims` spatial dimensions.

        Raises:
            ValueError: the window does not fit such images.
        """
        key = (device, dims)
        if key not in self._held:
            self.window.check(dims)
            rows = self.window.weights(dims)
            with torch.inference_mode(False):
                self._held[key] = [
                    move_to_device(row.to(storable(row.dtype, device)), device) for row in rows
                ]
        return self._held[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WindowWeights) and self.window == other.window

    def __hash__(self) -> int:
        return hash(self.window)

    def __reduce__(self) -> Any:
        return WindowWeights, (self.window,)


class SimilarityOptions(NamedTuple):
    """Which similarity is computed: at one scale, or with `betas` at one scale for each of them.

    `extra` is what else is returned: ``"image"`` for the similarity at each pixel, ``"contrast"`` for that of
    contrast alone.
    """

    extra: str | None = None
    betas: tuple[float, ...] = ()
    normalize: str | None = None

    def compute(
        self, preds: Tensor, target: Tensor, window: SsimWindow, weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the similarities ``(N,)``, and the `extra` result if there is one."""
        if self.betas:
            return self._compare_at_scales(preds, target, window, weights), None
        similar, contrast = compare_images(preds, target, window, weights)
        if self.extra == "contrast":
            return mean_per_image(similar), mean_per_image(crop_edges(contrast, weights))
        return mean_per_image(similar), similar if self.extra == "image" else None

    def _compare_at_scales(
        self, preds: Tensor, target: Tensor, window: SsimWindow, weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the product of the similarities at all scales, ``(N,)``."""
        dims = preds.dim() - 2
        check_scales(preds, window.sizes(dims), len(self.betas))
        halved = F.avg_pool2d if dims == 2 else F.avg_pool3d
        product: Any = 1.0
        for scale, beta in enumerate(self.betas):
            if scale:
                preds, target = halved(preds, 2), halved(target, 2)
            similar, contrast = compare_images(preds, target, window, weights)
            last = scale == len(self.betas) - 1
            value = mean_per_image(similar if last else crop_edges(contrast, weights))
            if self.normalize is not None:
                value = value.relu() if self.normalize == "relu" else (value + 1) / 2
            product = product * value**beta
        return torch.as_tensor(product)


def similarities_and_extra(
    batch: Batch, weights: WindowWeights, options: SimilarityOptions
) -> tuple[Tensor, Tensor | None]:
    """Return the similarity of each pair, ``(N,)``, and the extra result of `options`, if any."""
    preds, target = batch.derive(paired_images)
    return options.compute(preds, target, weights.window, weights.on(preds.device, preds.dim() - 2))


def pair_similarities(batch: Batch, weights: WindowWeights, options: SimilarityOptions) -> Tensor:
    """Return the similarity of each pair, ``(N,)``; an empty tensor for an empty batch."""
    preds, *_ = batch.args
    values: Tensor = (
        batch.derive(similarities_and_extra, weights, options)[0] if len(preds) else preds.new_zeros(0)
    )
    return values


class SimilarityRows(Rows):
    """The similarity of each pair, and the extra result of `options`, if any."""

    def __init__(self, weights: WindowWeights, options: SimilarityOptions, capacity: int | None) -> None:
        self.weights = weights
        self.options = options
        columns = {"value": None, **({"more": None} if options.extra else {})}
        super().__init__((weights, options), columns, capacity, checked=capacity is not None)

    def count(self, batch: Batch) -> None:
        if len(batch.args[0]):
            value, extra = batch.derive(similarities_and_extra, self.weights, self.options)
            self.append(value=value, **({} if extra is None else {"more": extra}))


def check_scales(preds: Tensor, sizes: tuple[int, ...], scales: int) -> None:
    """Raise ValueError if the images are too small for that many scales."""
    min_size = 2**scales
    if preds.shape[-1] < min_size or preds.shape[-2] < min_size:
        raise ValueError(
            f"For a given number of `betas` parameters {scales}, the image height and width dimensions must"
            f" be larger than or equal to {min_size}."
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
        gaussian_kernel: whether the window's weights are Gaussian; else all are equal.
        sigma: the standard deviation of the Gaussian, for each dimension or for all.
        kernel_size: the width of a window of equal weights, for each dimension or for all.
        reduction: ``"elementwise_mean"`` or ``"sum"`` over pairs, or ``"none"`` or None for a value per pair.
        data_range: the width of the range of values; a tuple of its bounds also clamps values to them; None
            for the range of each batch.
        k1: the share of the range that stabilizes products of means.
        k2: the share of the range that stabilizes variances.
        capacity: if every pair is kept, the maximum number of pairs, kept in fixed storage.
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    is_differentiable = True
    higher_is_better = True
    more_arguments = ("capacity",)
    similarity: Any
    reduction: str | None

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images and their references, ``(N, C, H, W)`` or ``(N, C, D, H, W)``."""
        self.observe(preds, target)

    def _set_up(
        self, window: SsimWindow, options: SimilarityOptions, reduction: str | None, capacity: int | None
    ) -> None:
        """Check and set `reduction`, and set up the statistic."""
        checks.check_one_of("reduction", reduction, REDUCTIONS)
        self.reduction = reduction
        weights, keeps_rows = WindowWeights(window), reduction in UNREDUCED or options.extra is not None
        self.use(
            "similarity",
            SimilarityRows(weights, options, capacity)
            if keeps_rows
            else Sum(pair_similarities, (weights, options)),
        )

    def value(self) -> Any:
        statistic = self.similarity
        if isinstance(statistic, Sum):
            return statistic.reduced(self.reduction).to(self.dtype)
        statistic.require_rows()
        values = statistic.valid_rows("value").clone()
        if self.reduction not in UNREDUCED:
            values = values.sum() if self.reduction == "sum" else values.mean()
        return (
            (values.to(self.dtype), statistic.valid_rows("more").clone())
            if statistic.options.extra
            else values.to(self.dtype)
        )


def as_tuple(value: Any) -> Any:
    """Return a sequence as a tuple, and any other value unchanged."""
    return tuple(value) if isinstance(value, Sequence) else value


class StructuralSimilarityIndexMeasure(SimilarityMetric):
    """The similarity of luminance, contrast and structure, in a window around each pixel.

    Args:
        return_full_image: whether to return the similarity at each pixel, too.
        return_contrast_sensitivity: whether to return the similarity of contrast alone, too.
    """

    torchmetrics_file = "ssim"
    torchmetrics_slots = (("similarity", "sum"), ("total", "seen"))

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
        extra = "image" if return_full_image else "contrast" if return_contrast_sensitivity else None
        window = SsimWindow(gaussian_kernel, as_tuple(sigma), as_tuple(kernel_size), data_range, k1, k2)
        self._set_up(window, SimilarityOptions(extra), reduction, capacity)


class MultiScaleStructuralSimilarityIndexMeasure(SimilarityMetric):
    """The product of the contrast similarities at several scales and the full similarity at the coarsest.

    Args:
        betas: the exponent of each scale; each scale has half the size of the one before.
        normalize: ``"relu"`` makes negative similarities 0, ``"simple"`` moves them from -1 … 1 to 0 … 1.
    """

    torchmetrics_file = "ssim"
    torchmetrics_slots = (("similarity", "sum"), ("total", "seen"))

    def __init__(
        self,
        gaussian_kernel: bool = True,
        kernel_size: int | Sequence[int] = 11,
        sigma: float | Sequence[float] = 1.5,
        reduction: str | None = "elementwise_mean",
        data_range: float | tuple[float, float] | None = None,
        k1: float = 0.01,
        k2: float = 0.03,
        betas: tuple[float, ...] = DEFAULT_BETAS,
        normalize: str | None = "relu",
        **kwargs: Any,
    ) -> None:
        capacity = kwargs.pop("capacity", None)
        super().__init__(**kwargs)
        is_sequence = isinstance(kernel_size, Sequence)
        if not (is_sequence or isinstance(kernel_size, int)) or (
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
        window = SsimWindow(gaussian_kernel, as_tuple(sigma), as_tuple(kernel_size), data_range, k1, k2)
        self._set_up(window, SimilarityOptions(None, betas, normalize or None), reduction, capacity)
