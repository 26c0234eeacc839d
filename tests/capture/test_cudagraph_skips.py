"""Each reason for which PyTorch makes no CUDA graph, or cuts one, on a function of its own; and its twin.

The reasons are torch 2.13's (`torch._inductor.cudagraph_utils`, `Scheduler.should_partition`, lowerings) that
compiled code can come to; the compiler itself refuses sparse tensors and `set_` on inputs, with a break.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fork_server
import pytest

from gapless.model import Compiled
from gapless.model.session import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be copied here")

SCRIPT = """
import torch

device = "cuda"
captured = torch.compile(mode="reduce-overhead")
by_name = torch.compile(backend="cudagraphs")
torch._dynamo.config.capture_scalar_outputs = True
torch._dynamo.config.capture_dynamic_output_shape_ops = True


@torch.library.custom_op("gapless_test::unsafe", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def unsafe(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@unsafe.register_fake
def _(x):
    return torch.empty_like(x)


@captured
def cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

@captured
def cond_right(x):
    return torch.where(x.sum() > 0, x.sin(), x.cos())

@captured
def loop(x):
    begin = torch.zeros((), dtype=torch.int64, device=x.device)
    again = torch._higher_order_ops.while_loop
    return again(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (begin, x))[1]

@captured
def loop_right(x):
    for _ in range(3):
        x = x * 2
    return x

@captured
def through_mask(x):
    y = x.clone()
    y[x[:, 0] > 0, :2] = x.new_zeros(2)
    return y

@captured
def through_mask_right(x):
    y = x.clone()
    y[x > 0] = 0
    return y

@captured
def sized_by_data(x):
    return x[x > 0].sum()

@captured
def sized_by_data_right(x):
    return x[torch.arange(2, device=x.device)].sum() + x.where(x > 0, 0).sum()

@captured
def repeated(x):
    return torch.repeat_interleave(x, torch.tensor([1, 1, 2, 0], device=x.device), dim=0)

@captured
def repeated_right(x):
    return torch.repeat_interleave(x, torch.tensor([1, 1, 2, 0], device=x.device), dim=0, output_size=4)

@captured
def value_read(x):
    return x * x.sum().item()

@captured
def value_read_right(x):
    return x * x.sum()

@captured
def operator(x):
    return unsafe(x) + 1

@captured
def operator_right(x):
    return x * 2 + 1

@captured
def copied_out(x):
    return (x * 2).cpu() + 1

@captured
def copied_out_right(x):
    return x * 2 + 1

@captured
def number(x, scale):
    return x * scale

number_right = torch.compile(number._torchdynamo_orig_callable, mode="reduce-overhead")

@captured
def on_cpu(x, other):
    return x + other.cuda()

@captured
def on_cpu_right(x, other):
    return torch.arange(4).to(x.device) + x + other

of_before = torch.rand(4)

@captured
def global_on_cpu(x):
    return x + of_before.to(x.device)

@captured
def written(x, total):
    total.add_(1)
    return x + total

@captured
def written_right(x, total):
    y = x * 2
    torch._dynamo.graph_break()
    y.add_(1)
    return y + total

@by_name
def whole_on_cpu(x, other):
    return x + other.to(x.device)

@by_name
def whole_written_right(x, total):
    total.add_(1)
    return x + total

other = dict(number=torch.tensor(0.5), number_right=torch.tensor(0.5, device=device))
for name, function in list(globals().items()):
    if not hasattr(function, "_torchdynamo_orig_callable"):
        continue
    for _ in range(2):
        x, cpu = torch.rand(4, 4, device=device), torch.rand(4, 4)
        if name in ("on_cpu", "whole_on_cpu"):
            function(x, cpu)
        elif name in other:
            function(x, other[name])
        elif function._torchdynamo_orig_callable.__code__.co_argcount == 2:
            function(x, cpu.to(device))
        else:
            function(x)

torch._inductor.config.triton.cudagraphs = True
@torch.compile
def by_the_setting(x, other):
    return x + other.to("cuda")
by_the_setting(torch.rand(4, device=device), torch.rand(4))

torch._inductor.config.graph_partition = False
@torch.compile
def uncut(x, other):
    return x + other.to("cuda")
uncut(torch.rand(4, device=device), torch.rand(4))
"""
UNCUT = {  # the compiler's settings are those at the end of the script
    "cond": ("operator", "torch.cond"),
    "loop": ("operator", "torch.while_loop"),
    "through_mask": ("operator", "a write through a mask"),
    "sized_by_data": ("operator", "aten::index"),
    "repeated": ("operator", "aten::repeat_interleave"),
    "value_read": ("operator", "aten::_local_scalar_dense"),
    "operator": ("operator", "gapless_test::unsafe"),
    "copied_out": ("copied-out", ""),
    "number": ("cpu-input", "scale"),
    "on_cpu": ("cpu-input", "other"),
    "global_on_cpu": ("cpu-input", "of_before"),
    "written": ("mutated-input", "total"),
    "whole_on_cpu": ("cpu-input", "other"),
    "by_the_setting": ("cpu-input", "other"),
    "uncut": ("cpu-input", "other"),
}
ALWAYS_WHOLE = {"cond", "written", "whole_on_cpu"}


def compiled(folder: Path, script: str) -> list[Compiled]:
    path, saved = folder / "script.py", folder / "run.gapless.json"
    path.write_text(script)
    words = ("check", "--no-loader", "--no-prices", "-q", "-o", str(saved), str(path))
    done = fork_server.run(("-m", "gapless", *words), folder)
    assert done.returncode == 0, done.stderr
    return list(load(str(saved)).compiled)


@pytest.fixture(scope="module", params=["cut", "whole"])
def graphs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, list[Compiled]]:
    script = SCRIPT if request.param == "whole" else SCRIPT.split("torch._inductor.config.graph_partition")[0]
    return request.param == "cut", compiled(tmp_path_factory.mktemp(request.param), script)


def test_each_reason_is_reported_and_its_twin_is_silent(graphs: tuple[bool, list[Compiled]]) -> None:
    cuts, compiled_graphs = graphs
    assert not [(graph.name, graph.failed) for graph in compiled_graphs if graph.failed]
    skips_by_name = {}
    for graph in compiled_graphs:
        name = "number_right" if graph.name == "number" and "number" in skips_by_name else graph.name
        assert name not in skips_by_name
        skips_by_name[name] = [(skip.skip, skip.what, skip.whole) for skip in graph.outside]
    for name, skips in skips_by_name.items():
        if name.endswith("_right"):
            assert skips == [], name
            continue
        skip, reason = UNCUT[name]
        if name == "number" and cuts:
            skip = "scalar-input"
        assert skips == [(skip, reason, name in ALWAYS_WHOLE or not cuts)], name
    assert set(UNCUT) - {"uncut"} <= set(skips_by_name)


def test_where_memory_is_not_cached_nothing_is_captured(tmp_path: Path) -> None:
    script = """
import torch

torch.cuda.init()
torch.cuda.caching_allocator_enable(False)

@torch.compile(mode="reduce-overhead")
def doubled(x):
    return x * 2

doubled(torch.rand(4, device="cuda"))
"""
    (only_graph,) = compiled(tmp_path, script)
    assert [(skip.skip, skip.whole) for skip in only_graph.outside] == [("uncached-memory", True)]


KEPT = """
import torch

captured = torch.compile(mode="reduce-overhead")
plain = torch.compile()
weight = torch.nn.Parameter(torch.rand(8, device="cuda"))


@captured
def loss_of(x):
    return (x * weight).sum()


@captured
def written(x, total):
    total.add_(1)
    return (x + total).sum()


@captured
def given_back(x):
    return x


def batch():
    return torch.rand(8, device="cuda")


losses = []
for _ in range(3):
    loss = loss_of(batch())
    loss.backward()
    losses.append(loss.detach())
wrong = torch.stack(losses)

losses = []
for _ in range(3):
    loss = loss_of(batch())
    loss.backward()
    losses.append(loss.detach().clone())
right = torch.stack(losses)

both = loss_of(batch()), loss_of(batch())  # the backward pass is still to come
(both[0] + both[1]).backward()

x = batch()
skipped = [written(x[:size], torch.zeros(size, device="cuda")) for size in (8, 8, 7, 6, 5, 4)]
right = torch.stack(skipped)
given = [given_back(one) for one in (x, x + 1, x + 2)]
right = torch.stack(given)

torch.compiler.cudagraph_mark_step_begin()
kept = loss_of(batch()).detach()
loss_of(batch())
right = kept + 1
torch.compiler.cudagraph_mark_step_begin()
loss_of(batch())
also_wrong = kept + 1
"""


def test_results_used_after_they_were_overwritten(tmp_path: Path) -> None:
    compiled_graphs = compiled(tmp_path, KEPT)
    lines = {
        (graph.name, skip.line.code.split(" =")[0])
        for graph in compiled_graphs
        for skip in graph.outside
        if skip.skip == "output-overwritten" and skip.line is not None
    }
    assert lines == {("loss_of", "wrong"), ("loss_of", "also_wrong")}
    skips = {skip.skip for graph in compiled_graphs if graph.name == "written" for skip in graph.outside}
    assert skips == {"mutated-input"}  # nothing of it is captured, and so nothing anew for other sizes
