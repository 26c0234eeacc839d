"""Compilers, exporters and foreign kernels under emulation."""

from __future__ import annotations

import copy
import gc
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gapless  # noqa: E402
from gapless.emulation.compiled import compilers  # noqa: E402
from gapless.emulation.support.patches import Patches  # noqa: E402
from gapless.errors import NotEmulated  # noqa: E402

# torch calls TorchScript deprecated; people's scripts use it all the same.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.extra = 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.undo()


@pytest.fixture
def notes(patches: Patches) -> list[str]:
    remarks: list[str] = []
    compilers.install(remarks.append, patches)
    return remarks


@pytest.fixture
def on_cuda(notes: list[str], patches: Patches) -> None:
    """Every tensor says that it is a CUDA tensor, as those on the device do under emulation."""
    patches.set(torch.Tensor, "device", property(lambda _: torch.device("cuda", 0)))
    patches.set(torch.Tensor, "is_cuda", property(lambda _: True))


# -- torch.compile -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"fullgraph": True, "dynamic": True}])
def test_a_compiled_module_is_what_torch_makes_of_it(notes: list[str], options: dict[str, Any]) -> None:
    net = Net()
    compiled = torch.compile(net, **options)
    assert isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)
    assert compiled._orig_mod is net
    assert compiled.extra == 5
    assert list(compiled.state_dict()) == ["_orig_mod.layer.weight", "_orig_mod.layer.bias"]
    assert list(dict(compiled.named_modules())) == ["", "_orig_mod", "_orig_mod.layer"]
    x = torch.rand(4, 3)
    assert torch.equal(compiled(x), net(x))
    compiled(x).sum().backward()
    assert net.layer.weight.grad is not None
    compiled.eval()
    assert not net.training
    assert torch.equal(torch.compile(compiled)(x), net(x))
    assert len(set(notes)) == 1
    assert notes[0].startswith("torch.compile ran eagerly")


def test_a_compiled_module_can_be_copied_and_pickled(notes: list[str]) -> None:
    compiled = torch.compile(Net())
    x = torch.rand(4, 3)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(other(x), compiled(x))


def test_a_module_compiled_in_place(notes: list[str]) -> None:
    net = Net()
    x = torch.rand(4, 3)
    expected = net(x)
    net.compile(mode="max-autotune")
    assert torch.equal(net(x), expected)
    assert list(net.state_dict()) == ["layer.weight", "layer.bias"]
    assert len(notes) == 1


def test_a_compiled_function_runs_line_by_line(notes: list[str]) -> None:
    frames = []

    @torch.compile(fullgraph=True)
    def step(x: Any, *, scale: float = 2.0) -> Any:
        """Documented."""
        frames.append(sys._getframe().f_code.co_name)
        return x * scale

    assert not notes  # a library may decorate what nobody calls
    assert step(torch.ones(2)).tolist() == [2.0, 2.0]
    assert step(torch.ones(2), scale=3.0).tolist() == [3.0, 3.0]
    assert frames == ["step", "step"]
    assert (step.__name__, step.__doc__) == ("step", "Documented.")
    assert list(inspect.signature(step).parameters) == ["x", "scale"]
    assert len(notes) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_a_backward_that_leaves_gradients_out_is_the_compilers_affair(compiled: bool) -> None:
    """Compiled code takes the rest as None; the autograd engine alone refuses."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float, unused: int) -> Any:
            ctx.scale = scale
            return x * scale

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return upstream * ctx.scale

    def loss(x: Any) -> Any:
        return Scaled.apply(x, 3.0, 0).sum()

    with gapless.emulate():
        x = torch.ones(2, device="cuda", requires_grad=True)
        whole = (torch.compile(loss) if compiled else loss)(x)
        refused = pytest.raises(RuntimeError, match="incorrect number of gradients")
        with nullcontext() if compiled else refused:
            whole.backward()
        assert (x.grad is not None) == compiled


def test_wrong_options_are_refused_as_ever(notes: list[str]) -> None:
    with pytest.raises(RuntimeError, match="both can't be specified"):
        torch.compile(Net(), mode="default", options={})
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        torch.compile(Net(), mode="fastest")
    with pytest.raises(TypeError):
        torch.compile(Net(), speed=9)
    with pytest.raises(AssertionError, match="callable"):
        torch.compile(3)


def test_switched_off_it_returns_what_it_is_given(notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    assert torch.compile(net, disable=True) is net
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert torch.compile(net) is net
    assert not notes


def test_what_was_compiled_before_runs_eagerly_too(patches: Patches) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    compilers.install(lambda _: None, patches)
    assert compiled(torch.ones(1)).item() == 2.0
    assert not graphs
    patches.undo()
    assert compiled(torch.ones(1)).item() == 2.0
    assert len(graphs) == 1


def test_the_helpers_around_it_do_no_harm(notes: list[str]) -> None:
    assert not torch.compiler.is_compiling()
    torch.compiler.cudagraph_mark_step_begin()
    torch._dynamo.reset()
    x = torch.rand(3)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_static_address(x)

    @torch.compiler.disable
    def plain(y: Any) -> Any:
        return y + 1

    assert torch.equal(torch.compile(lambda y: plain(y))(x), x + 1)


@pytest.mark.filterwarnings("error::UserWarning")
def test_flex_attention_is_attention(notes: list[str], patches: Patches) -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    # torch refuses gradients for tensors on the CPU; under emulation they are on CUDA.
    patches.set(flex, "_validate_device", lambda *_: None)
    query, key, value = (torch.rand(1, 2, 64, 8, requires_grad=True) for _ in range(3))
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, device="cpu")
    out = torch.compile(flex.flex_attention)(query, key, value, block_mask=mask)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(out, expected)
    gradient, reference = (torch.autograd.grad(o.square().sum(), query)[0] for o in (out, expected))
    torch.testing.assert_close(gradient, reference)


def test_undone_everything_is_as_before(patches: Patches) -> None:
    importlib.import_module("torch._dynamo")

    def state() -> list[Any]:
        names = ("script", "trace", "save", "load", "freeze")
        return [
            torch.compile,
            torch._dynamo.optimize,
            torch._dynamo.eval_frame._stance,
            torch.export.export,
            torch.from_dlpack,
            torch.Tensor.__dlpack__,
            *(getattr(torch.jit, name) for name in names),
            torch.jit._state._enabled.enabled,
            vars(torch._subclasses.fake_tensor.FakeTensor)["__new__"],
        ]

    before = state()
    compilers.install(lambda _: None, patches)
    assert state() != before
    patches.undo()
    assert state() == before


# -- TorchScript ---------------------------------------------------------------------------------------


def test_scripted_code_is_the_python_it_was_made_from(notes: list[str]) -> None:
    @torch.jit.script
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    net = Net()
    x = torch.rand(1, 3)
    assert inspect.isfunction(double)
    assert torch.jit.script(net) is net
    assert torch.jit.trace(net, x) is net
    assert torch.jit.freeze(net) is net
    assert torch.equal(double(x), x * 2)
    assert sorted(set(notes)) == [
        f"torch.jit.{name} ran eagerly: the original Python code runs instead of TorchScript, and operators "
        "that TorchScript would fuse are counted separately"
        for name in ("script", "trace")
    ]


def test_scripted_modules_are_saved_as_torchscript(
    notes: list[str], patches: Patches, tmp_path: Path
) -> None:
    net, x = Net(), torch.rand(1, 3)
    expected = net(x)
    scripted, traced = torch.jit.script(copy.deepcopy(net)), torch.jit.trace(copy.deepcopy(net), x)
    scripted.save(str(tmp_path / "scripted.pt"))
    torch.jit.save(traced, str(tmp_path / "traced.pt"))
    patches.undo()
    for name in ("scripted", "traced"):
        loaded = torch.jit.load(str(tmp_path / f"{name}.pt"))
        assert isinstance(loaded, torch.jit.ScriptModule)
        torch.testing.assert_close(loaded(x), expected)


def test_a_model_that_tensorboard_draws_is_an_empty_graph(
    patches: Patches, notes: list[str], tmp_path: Path
) -> None:
    """It traces the model, and takes the graph from what that gives."""
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    writer.add_graph(Net(), torch.ones(1, 3))
    writer.close()
    assert any(tmp_path.iterdir())
    assert [note for note in notes if "add_graph" in note]


def test_torchscript_of_before_runs_as_it_is(patches: Patches) -> None:
    scripted = torch.jit.script(Net())
    compilers.install(lambda _: None, patches)
    assert torch.jit.script(scripted) is scripted
    assert scripted(torch.rand(1, 3)).shape == (1, 2)


# -- exporting and fakes -------------------------------------------------------------------------------


def test_exporting_from_the_device_is_refused(on_cuda: None) -> None:
    with pytest.raises(
        NotEmulated, match=r"torch\.export\.export of a model on the GPU.*model\.cpu\(\)"
    ) as caught:
        torch.export.export(Net(), (torch.rand(1, 3),))
    assert __file__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_exporting_from_the_host_works(notes: list[str]) -> None:
    program = torch.export.export(Net(), (torch.rand(1, 3),))
    assert program.module()(torch.rand(1, 3)).shape == (1, 2)


def test_a_fake_tensor_on_cuda_does_not_end_the_process(python) -> None:
    """Autograd on one aborts where there is no CUDA device, so this is tried in a process of its own."""
    script = """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from gapless.emulation.compiled import compilers
        from gapless.emulation.support.patches import Patches

        notes = []
        compilers.install(notes.append, Patches())
        with FakeTensorMode():
            x = torch.empty(2, 2, device="cuda", requires_grad=True)
            (x * x).sum().backward()
        print(x.grad.shape, set(notes))
    """
    done = python("-c", textwrap.dedent(script))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "torch.Size([2, 2])" in done.stdout
    assert "created on the CPU" in done.stdout


# -- foreign code --------------------------------------------------------------------------------------


def test_no_triton_appears_where_there_is_none(notes: list[str]) -> None:
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("triton")


def test_the_memory_of_device_tensors_is_not_handed_out(on_cuda: None) -> None:
    x = torch.rand(3)
    with pytest.raises(NotEmulated, match="__cuda_array_interface__"):
        x.__cuda_array_interface__  # noqa: B018
    with pytest.raises(NotEmulated, match=r"`__dlpack__`.*tensor\.cpu\(\)"):
        x.__dlpack__()
    with pytest.raises(NotEmulated, match="to_dlpack"):
        torch.utils.dlpack.to_dlpack(x)
    shared = torch.from_dlpack(x)
    shared.fill_(7)
    assert x.tolist() == [7.0, 7.0, 7.0]


def test_the_memory_of_host_tensors_is(notes: list[str]) -> None:
    x = torch.rand(3)
    assert not hasattr(x, "__cuda_array_interface__")
    torch.from_dlpack(x).fill_(2)
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).add_(1)
    assert x.tolist() == [3.0, 3.0, 3.0]


def test_compiling_switches_the_checks_of_distributions_off(notes: list[str], patches: Patches) -> None:
    """As torch does, for the whole process; the emulation takes it back at its end."""
    distribution = torch.distributions.Distribution
    distribution.set_default_validate_args(True)
    torch.compile(Net())
    assert not distribution._validate_args
    patches.undo()
    assert distribution._validate_args


def test_a_lasting_emulation_imports_no_compiler_and_changes_the_one_the_script_imports() -> None:
    code = """
        import sys, torch, torch.utils.checkpoint
        from gapless.emulation.emulator import Emulator
        from gapless.emulation.options import EmulatorOptions
        before = set(sys.modules)
        emulator = Emulator(EmulatorOptions(lasting=True)).start()
        compilers = ("torch._dynamo", "torch._inductor", "torch.onnx", "torch.nn.attention.flex_attention")
        print([name for name in sys.modules if name.startswith("gapless.emulation.standins.packages.")])
        weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1.0)  # imports torch._dynamo, as every optimizer does
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        wave = torch.utils.checkpoint.checkpoint(torch.cos, weight, use_reentrant=False)
        wave[wave > 0].sum().backward()  # waits in its backward, where the forward's stack is told
        loaded = [name for name in sys.modules if name.startswith("torch._dynamo.") and name not in before]
        print(weight.tolist(), loaded, type(sys.modules["torch._dynamo"]).__name__)
        print([name for name in compilers[1:] if name in sys.modules and name not in before])
        import torch._dynamo.config  # a part of it loads it, once
        print(sys.modules["torch._dynamo.config"] is torch._dynamo.config, torch._dynamo.config.__spec__.name)
        print("_inductor" in vars(torch) or "torch._inductor" not in sys.modules)
        print(torch.compile(lambda x: x + 1)(torch.ones(1, device="cuda")).item())
        notes = [note.split(':')[0] for note in emulator.session().notes]
        print(type(sys.modules["torch._dynamo"]).__name__, notes)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    expected = [
        "[]",
        "[0.0, 0.0] [] _Deferred",
        "[]",
        "True torch._dynamo.config",
        "True",
        "2.0",
        "module ['torch.compile ran eagerly']",
    ]
    assert done.stdout.splitlines() == expected, done.stderr


def test_the_compiler_takes_torch_tensor_of_a_default_type_on_the_device():
    """It looks at the signatures of what it replaces when it is loaded, by then with ours in their place."""
    code = """
        import warnings
        import torch
        import gapless

        warnings.simplefilter("ignore")
        with gapless.emulate():
            torch.set_default_tensor_type("torch.cuda.FloatTensor")
            print(torch.compile(lambda x: x + 1)(torch.Tensor([1.0])))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "tensor([2.], device='cuda:0')\n", done.stderr


# -- what is kept of calls -----------------------------------------------------------------------------


def recorded(patches: Patches) -> Any:
    from gapless.emulation.compiled.compiled_calls import CompiledCalls

    calls = CompiledCalls(lambda tensor: -1)
    compilers.install(lambda _: None, patches, calls=calls)
    return calls


def test_a_call_is_kept_where_it_differs_and_a_few_times_where_it_does_not(patches: Patches) -> None:
    from gapless.emulation.compiled.compiled_calls import MAX_REPEATS

    calls = recorded(patches)
    double = torch.compile(lambda x, scale=2: x * scale)
    for _ in range(MAX_REPEATS + 5):
        double(torch.ones(2))
    assert len(calls.kept) == MAX_REPEATS
    double(torch.ones(3))
    double(torch.ones(2), 3)
    double(torch.ones(2, requires_grad=True))
    with torch.no_grad():
        double(torch.ones(2))
    assert [call.number for call in calls.kept[MAX_REPEATS:]] == [
        MAX_REPEATS + 6,
        MAX_REPEATS + 7,
        MAX_REPEATS + 8,
        MAX_REPEATS + 9,
    ]
    assert not calls.failed


def test_what_is_kept_has_its_values_and_changes_with_nothing(patches: Patches) -> None:
    from gapless.emulation.compiled.signatures import Rebuilder

    calls = recorded(patches)
    x = torch.arange(4)
    torch.compile(lambda batch: batch["x"][0] + 1)({"x": [x, x]})
    x.zero_()
    (result,) = map(Rebuilder(lambda tensor, index: None, values=True), calls.kept[0].args)
    assert result["x"][0].tolist() == [0, 1, 2, 3]
    assert result["x"][0] is result["x"][1]


def test_indices_without_values_are_in_every_range() -> None:
    """What runs outside compiled code looks them up."""
    from gapless.emulation.compiled.signatures import KeptTensor, Rebuilder

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills memory that is not written with the largest numbers
    try:
        rebuilt = Rebuilder(lambda tensor, index: None, values=False)
        indices = rebuilt(KeptTensor((3, 2), (2, 1), torch.int64, 0, False, None))
        weights = rebuilt(KeptTensor((3, 2), (2, 1), torch.float32, 0, False, None))
    finally:
        torch.use_deterministic_algorithms(before)
    assert not indices.any()
    assert weights.isnan().all()


class Counted:
    """A class that keeps account of its objects, as pools, registries and files do."""

    begun = ended = 0
    __slots__ = ("__dict__", "slot")

    def __new__(cls, *args: Any) -> Counted:
        cls.begun += 1
        return super().__new__(cls)

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.slot = x, "slot"

    def __del__(self) -> None:
        Counted.ended += 1


def test_an_object_that_is_kept_is_none_that_the_script_made(patches: Patches) -> None:
    from gapless.emulation.compiled.signatures import Rebuilder

    calls = recorded(patches)
    counted = Counted(torch.arange(3))
    torch.compile(lambda data: data[0].x + 1)([counted])
    ((result,),) = map(Rebuilder(lambda tensor, index: None, values=True), calls.kept[0].args)
    assert isinstance(result, Counted)
    assert (type(result).__name__, result.slot, result.x.tolist()) == ("Counted", "slot", [0, 1, 2])
    assert result is not counted
    del result
    calls.kept.clear()
    gc.collect()
    assert (Counted.begun, Counted.ended) == (1, 0)


def test_attributes_that_the_script_sets_come_with_the_next_call(patches: Patches) -> None:
    calls = recorded(patches)
    net = Net()
    compiled = torch.compile(net)
    compiled(torch.rand(1, 3))
    net.extra = 7
    compiled(torch.rand(1, 3))
    assert [(name, value) for _, name, value in calls.kept[1].changes] == [("extra", 7)]


def test_what_a_compiled_function_calls_is_its_own_affair(patches: Patches) -> None:
    calls = recorded(patches)
    inner = torch.compile(lambda x: x + 1)
    torch.compile(lambda x: inner(x) * 2)(torch.ones(2))
    assert len(calls.targets) == 1
