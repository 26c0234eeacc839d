"""Packages that can be installed without a GPU: what is changed, and what their operators wait for."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gapless
from gapless.emulation.standins import finder, known
from gapless.emulation.standins.launch import launch
from gapless.emulation.standins.packages import bitsandbytes, deepspeed, torchvision
from gapless.emulation.waits.call import Call
from gapless.errors import NotEmulated

FILES = [name for name in finder.package_names() if hasattr(finder.import_declaration(name), "OPERATORS")]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules that can be imported, and forgets them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split("."))
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").write_text(textwrap.dedent(text))
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", sorted(FILES))
def test_rows_are_of_the_packages_operators(name: str) -> None:
    for operator, ways in finder.import_declaration(name).OPERATORS.items():
        assert operator.startswith(f"{name}::")
        rows = known.rows_for(operator)
        assert rows is not None
        assert len(rows) == len(ways)
        for row, _ in rows:
            assert row.reason
            assert row.source
    assert known.rows_for(f"{name}::never") is None
    assert known.rows_for("nobody::op") is None


def test_a_known_operator_counts_what_is_known_of_it() -> None:
    """An operator of that name, whose kernel here reads values as the one for CUDA would not."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    name = f"_test_{uuid.uuid4().hex[:6]}"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * x.sum().item(), "CPU")
    torchvision.OPERATORS[f"torchvision::{name}"] = ()
    try:
        with gapless.emulate() as emulation:
            x = torch.ones(2, device="cuda")
            before = emulation.waits
            getattr(torch.ops.torchvision, name)(x)
            assert emulation.waits == before
        assert emulation.session.unknown == ()
    finally:
        del torchvision.OPERATORS[f"torchvision::{name}"]
        library._destroy()


@pytest.mark.parametrize(
    ("version", "expected"), [("0.20.1", {"d2h", "h2d"}), ("0.21.0+cpu", {"size"}), ("1.0", {"size"})]
)
def test_nms_by_version(version: str, expected: set[str], package: Any) -> None:
    package("torchvision", f"__version__ = {version!r}\n")
    before = sys.modules.pop("torchvision", None)
    importlib.import_module("torchvision")
    boxes = torch.ones(2, 4)
    try:
        for arguments, waits in ((boxes, expected), (boxes[:0], set())):
            call = Call(None, (arguments,), {}, lambda tensor: True)
            rows = known.rows_for("torchvision::nms") or ()
            assert {row.mechanism for row, times in rows if times(call)} == waits
    finally:
        sys.modules.pop("torchvision")
        if before is not None:
            sys.modules["torchvision"] = before


def test_bitsandbytes_sees_no_gpu_while_it_is_imported(package: Any) -> None:
    package("bitsandbytes", "import torch\nseen = torch.cuda.is_available(), torch.version.cuda\n")
    with gapless.emulate():
        assert torch.cuda.is_available()
        assert importlib.import_module("bitsandbytes").seen == (False, None)
        assert torch.cuda.is_available()


def test_outliers_are_looked_for_only_where_there_is_a_threshold() -> None:
    x = torch.tensor([[1.0, 7.0]])
    for threshold, waits in ((0.0, 0), (6.0, 2), (8.0, 1)):
        assert (
            bitsandbytes._outliers(Call(None, (x,), {"threshold": threshold}, lambda tensor: True)) == waits
        )


BUILDER = """
    class OpBuilder:
        def __init__(self, name):
            self.name = name
        def load(self, verbose=False):
            raise RuntimeError("CUDA_HOME does not exist")
    class CUDAOpBuilder(OpBuilder):
        pass
"""


def test_deepspeeds_kernels_are_there_and_others_refuse(package: Any) -> None:
    for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.op_builder"):
        package(name, "")
    package("deepspeed.ops.op_builder.builder", BUILDER)
    with gapless.emulate():
        builder = importlib.import_module("deepspeed.ops.op_builder.builder")
        importlib.import_module("deepspeed")
        param = torch.ones(3, device="cuda")
        grad, first, second = torch.full_like(param, 2.0), torch.zeros_like(param), torch.zeros_like(param)
        kernel = builder.CUDAOpBuilder("fused_adam").load().multi_tensor_adam
        kernel(2048, None, [[grad], [param], [first], [second]], 0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
        assert param.tolist() == pytest.approx([0.9] * 3)
        with pytest.raises(NotEmulated, match=r"`quantizer\.quantize`"):
            builder.CUDAOpBuilder("quantizer").load().quantize(param)
        with pytest.raises(RuntimeError, match="CUDA_HOME"):
            builder.OpBuilder("async_io").load()


def test_adam_in_the_hosts_memory_is_torchs() -> None:
    torch.manual_seed(0)
    own, param = torch.randn(4), torch.nn.Parameter(torch.empty(4))
    param.data.copy_(own)
    theirs = torch.optim.AdamW([param], lr=0.1, weight_decay=0.2)
    ours = deepspeed._KERNELS["cpu_adam"]()
    ours.create_adam(0, 0.1, 0.9, 0.999, 1e-8, 0.2, True, False)
    first, second = torch.zeros(4), torch.zeros(4)
    for step in range(1, 4):
        param.grad = torch.randn(4)
        ours.adam_update(0, step, 0.1, 0.9, 0.999, 1e-8, 0.2, True, own, param.grad, first, second)
        theirs.step()
    torch.testing.assert_close(own, param.detach())
    ours.destroy_adam(0)


def test_lamb_of_deepspeed() -> None:
    torch.manual_seed(0)
    param, grad = torch.randn(5), torch.randn(5)
    first, second, before = torch.zeros(5), torch.zeros(5), param.clone()
    factor = deepspeed._lamb(
        param, torch.empty(0), first, second, grad, 0.1, 0.9, 0.999, 10.0, 0.01, 1e-6, 1.0, 1, 1, 1, 0.01
    )
    m, v = 0.1 * grad, 0.001 * grad**2
    update = m / (v.sqrt() + 1e-6) + 0.01 * before
    trust = (before.norm() / update.norm()).clamp(0.01, 10)
    torch.testing.assert_close(factor, trust.reshape(1))
    size = 0.1 * (1 - 0.999) ** 0.5 / (1 - 0.9)
    torch.testing.assert_close(param, before - size * trust * update)


# -- torchvision's operators where its own cannot be loaded --------------------------------------------


def _overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    shared = 1.0
    for at in (0, 1):
        shared *= max(0.0, float(min(a[at + 2], b[at + 2]) - max(a[at], b[at])))
    sizes = [float((box[2] - box[0]) * (box[3] - box[1])) for box in (a, b)]
    return shared / (sum(sizes) - shared)


@pytest.mark.parametrize("seed", range(5))
def test_boxes_that_are_kept(seed: int) -> None:
    torch.manual_seed(seed)
    corners, scores = torch.rand(30, 2) * 4, torch.rand(30)
    candidates = torch.cat((corners, corners + torch.rand(30, 2) * 3 + 0.1), 1)
    kept: list[int] = []
    for at in scores.argsort(descending=True).tolist():
        if all(_overlap(candidates[at], candidates[other]) <= 0.4 for other in kept):
            kept.append(at)
    assert torchvision.boxes.nms(candidates, scores, 0.4).tolist() == kept
    assert torchvision.boxes.nms(candidates[:0], scores[:0], 0.4).tolist() == []


def _aligned(image: torch.Tensor, region: list[float], samples: int, shift: float) -> torch.Tensor:
    """Two by two bins, sample by sample."""
    height, width = image.shape[1:]
    left, top, right, bottom = (edge - shift for edge in region)
    least = 0.0 if shift else 1.0
    wide, high = max(right - left, least), max(bottom - top, least)
    many = [samples or math.ceil(size / 2) for size in (high, wide)]
    out = torch.zeros(image.shape[0], 2, 2)
    for p, q, i, j in itertools.product(range(2), range(2), range(many[0]), range(many[1])):
        y, x = top + (p + (i + 0.5) / many[0]) * high / 2, left + (q + (j + 0.5) / many[1]) * wide / 2
        if not (-1 <= y <= height and -1 <= x <= width):
            continue
        y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
        for a, b in itertools.product((int(y), int(y) + 1), (int(x), int(x) + 1)):
            share = max(0.0, 1 - abs(y - a)) * max(0.0, 1 - abs(x - b))
            if share:
                out[:, p, q] += share * image[:, a, b]
    return out / (many[0] * many[1])


@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize("aligned", [False, True])
def test_regions_are_averaged_sample_by_sample(samples: int, aligned: bool) -> None:
    torch.manual_seed(samples)
    source = torch.randn(2, 3, 6, 5, requires_grad=True)
    regions = [
        [0, 0.3, 0.7, 4.1, 5.2],
        [1, 2.0, 1.0, 2.4, 1.2],
        [0, -3.0, -2.0, 9.0, 8.0],
        [1, 20.0, 20.0, 22.0, 22.0],
    ]
    out = torchvision.boxes.roi_align(source, torch.tensor(regions), 1.0, 2, 2, samples, aligned)
    expected = torch.stack(
        [_aligned(source[int(at)], region, samples, 0.5 * aligned) for at, *region in regions]
    )
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    weights = torch.randn_like(out)
    gradient, same = (torch.autograd.grad((output * weights).sum(), source)[0] for output in (out, expected))
    torch.testing.assert_close(gradient, same, atol=1e-5, rtol=1e-4)


def test_without_values_regions_lie_in_no_image_and_have_their_size() -> None:
    with gapless.emulate(dry=True):
        source = torch.randn(2, 3, 64, 64, device="cuda", requires_grad=True)
        regions = torch.randn(8000, 5, device="cuda")
        out = torchvision.boxes.roi_align(source, regions, 1.0, 2, 2, 2, True)
        out.sum().backward()
        assert out.shape == (8000, 3, 2, 2)
        assert source.grad is not None
        assert source.grad.shape == source.shape


def test_what_cannot_be_computed_with_made_up_values_is_named() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x[:2][[int(x.flatten()[0].item()) + 1_000_000]]

    with gapless.emulate(dry=True):
        x = torch.randn(200, 200, device="cuda")
        with pytest.raises(NotEmulated, match="What pack::pick makes depends on values"):
            launch("pack::pick", body, x)


def test_the_operators_are_there_where_they_cannot_be_loaded(
    python: Callable[..., Any], write: Callable[[str, str], Path]
) -> None:
    """In a process of its own: operators are defined for good."""
    write("torchvision/__init__.py", "__version__ = '0.29'\nfrom . import extension, _meta\n")
    write("torchvision/extension.py", "def _has_ops():\n    return False\n")
    write(
        "torchvision/_meta.py",
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda *a: a[0])\n",
    )
    script = """
        import sys; sys.path.insert(0, "")
        import gapless, torch
        from gapless.errors import NotEmulated
        with gapless.emulate() as seen:
            import torchvision
            ops = torch.ops.torchvision
            boxes = torch.tensor([[0., 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6]], device="cuda")
            before = seen.waits
            kept = ops.nms(boxes, torch.tensor([.5, .9, .1], device="cuda"), .5)
            print(seen.waits - before - 1, torchvision.extension._has_ops())
            x = torch.ones(1, 2, 8, 8, device="cuda", requires_grad=True)
            rois = torch.tensor([[0., 1, 1, 5, 5]], device="cuda")
            before = seen.waits
            ops.roi_align(x, rois, 1.0, 2, 2, 2, True).sum().backward()
            print(seen.waits - before, kept.tolist(), round(x.grad.sum().item(), 4), x.grad.device)
            try:
                ops.roi_pool(x, rois, 1.0, 2, 2)
            except NotEmulated as error:
                print("torchvision::roi_pool" in str(error))
            print(sum("cannot be loaded with this torch" in note for note in seen.session.notes))
    """
    done = python("-c", textwrap.dedent(script))
    assert done.stdout == "1 True\n0 [1, 2] 8.0 cuda:0\nTrue\n1\n", done.stderr


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the folder of tests with that name."""
    monkeypatch.delitem(sys.modules, "kernels", raising=False)


@pytest.mark.usefixtures("no_kernels")
def test_kernels_of_the_hub_stand_in_or_refuse_when_they_are_called(
    package: Callable[[str, str], None],
) -> None:
    package(
        "kernels",
        "\n        def has_kernel(repo_id): ...\n        def get_kernel(repo_id, revision=None, "
        'version=None):\n            raise FileNotFoundError("no build for , which launches the '
        'kernels")\n        ',
    )
    with gapless.emulate("h100"):
        get = importlib.import_module("kernels").get_kernel
        q = torch.rand(1, 8, 2, 4, device="cuda", dtype=torch.bfloat16)
        expected = importlib.import_module("flash_attn").flash_attn_func(q, q, q)
        for name in ("kernels-community/flash-attn", "someone/flash-attention-3"):
            assert torch.equal(get(name, version=1).flash_attn_func(q, q, q), expected)
        assert get("kernels-community/flash-attn3").flash_attn_interface.flash_attn_func
        with pytest.raises(NotEmulated, match=r"kernels-community/other\.norm"):
            get("kernels-community/other").norm(q)


@pytest.mark.usefixtures("no_kernels")
def test_a_module_of_that_name_is_left_alone(package: Callable[[str, str], None]) -> None:
    package("kernels", "def get_kernel(name): return name")
    with gapless.emulate():
        assert importlib.import_module("kernels").get_kernel("flash-attn") == "flash-attn"
