"""Where waits are shown: the user's line, through libraries, threads, backward passes and checkpoints."""

from __future__ import annotations

import copy
import importlib
import io
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.support import stacks
from gapless.errors import UsageError


@pytest.fixture
def emulator():
    with Emulator() as emulator:
        yield emulator


def events_of(emulator):
    """Return ``(code of the user's line, operator, waits)`` of each event."""
    session = emulator.session()
    sites = session.sites
    return [(sites[e.site].line.code, sites[e.site].operator, e.waits) for e in session.events]


def test_repeats_between_two_marks_are_one_event(emulator):
    x = torch.ones(3, device="cuda")
    for _ in range(4):
        x.sum().item()
    assert events_of(emulator) == [("x.sum().item()", "aten::_local_scalar_dense", 4)]


def test_a_wait_below_a_library_is_shown_at_the_users_line(emulator):
    probabilities = torch.full((3,), 0.3, device="cuda")
    torch.distributions.Bernoulli(probabilities, validate_args=True)
    (site,) = emulator.session().sites
    assert site.line.code == "torch.distributions.Bernoulli(probabilities, validate_args=True)"
    assert [frame.library for frame in site.library_frames][:1] == ["torch"]
    assert "torch/distributions" in site.library_frames[0].file.replace("\\", "/")


def test_gaplesss_own_frames_are_never_shown(emulator):
    x = torch.ones(3, device="cuda", requires_grad=True)
    x[x > 0].sum().backward()
    for site in emulator.session().sites:
        assert not any(
            "/emulation/" in frame.file for frame in (*site.stack, *site.forward) if "test" not in frame.file
        )


def test_a_wait_in_backward_has_the_forward_line(emulator):
    x = torch.ones(3, device="cuda", requires_grad=True)
    mask = x > 0
    picked = x[mask]
    loss = (picked * 2).sum()
    loss.backward()
    assert events_of(emulator) == [
        ("picked = x[mask]", "aten::index", 1),
        ("picked = x[mask]", "aten::index_put", 1),
    ]
    backward = emulator.session().sites[1]
    assert backward.in_backward
    assert backward.node == "IndexBackward0"


def test_a_wait_in_the_users_own_backward_is_shown_there(emulator):
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            assert not gradient.isnan().any()
            return gradient * 2

    x = torch.ones(3, device="cuda", requires_grad=True)
    Checked.apply(x).sum().backward()
    assert events_of(emulator) == [("assert not gradient.isnan().any()", "aten::_local_scalar_dense", 1)]


def test_a_checkpointed_forward_is_seen_again_in_backward(emulator):
    def inner(x):
        return (x * x.sum().item()).sin()

    x = torch.ones(3, device="cuda", requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
    out.sum().backward()
    assert [code for code, _, _ in events_of(emulator)] == ["return (x * x.sum().item()).sin()"] * 2


def test_threads_see_the_device_and_are_shown_at_the_users_line(emulator):
    def read():
        values.append(torch.ones(2, device="cuda").sum().item())

    values: list[float] = []
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: torch.ones(2, device="cuda").is_cuda).result()
    assert values == [2.0]
    assert events_of(emulator)[0][0].startswith("values.append")


class Numbers(Dataset):
    """Eight items that say where they were made."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index))


def test_a_loaders_workers_stay_on_the_host_and_pinned_batches_do_not_wait(emulator):
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, pin_memory=True)
    batches = []
    for batch in loader:
        assert batch.is_pinned()
        batches.append(batch.to("cuda", non_blocking=True))
    assert [batch.device.type for batch in batches] == ["cuda", "cuda"]
    assert emulator.session().events == ()


def test_saving_waits_once_a_storage_and_loading_keeps_the_place(emulator):
    model = torch.nn.Linear(2, 2).cuda()
    events = len(emulator.session().events)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    saved = emulator.session().events[events:]
    assert sum(event.waits for event in saved) == 2
    buffer.seek(0)
    assert torch.load(buffer)["weight"].device == torch.device("cuda", 0)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["weight"].device.type == "cpu"


def test_copies_of_a_model_stay_where_it_is(emulator):
    model = torch.nn.Linear(2, 2).cuda()
    twin = copy.deepcopy(model)
    assert twin.weight.is_cuda
    assert twin.weight.data_ptr() != model.weight.data_ptr()


def test_a_session_survives_its_disk_format(emulator, tmp_path):
    from gapless.model import session as sessions

    torch.ones(2, device="cuda").sum().item()
    session = emulator.session(script=("train.py",))
    sessions.save(session, tmp_path / "run.gapless.json")
    assert sessions.load(tmp_path / "run.gapless.json") == session


def test_the_environment_names_versions_and_no_variables(emulator, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    session = emulator.session()
    assert session.environment.torch == str(torch.__version__)
    assert session.environment.emulated
    assert "hunter2" not in str(session)


def test_two_emulations_cannot_be_on_at_once(emulator):
    with pytest.raises(UsageError, match="nested"), Emulator():
        pass
    assert torch.ones(1, device="cuda").is_cuda  # the first one is still on


def test_after_the_end_everything_is_as_before():
    before = (torch.Tensor.device, torch.device, torch.cuda.is_available, torch.nn.Module.train)
    with Emulator():
        assert torch.cuda.is_available()
    assert (torch.Tensor.device, torch.device, torch.cuda.is_available, torch.nn.Module.train) == before
    assert torch.ones(1).device.type == "cpu"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1).cuda()


def test_prod_in_backward_reads_though_no_operator_shows_it(emulator):
    x = torch.rand(4, device="cuda", requires_grad=True)
    product = x.prod()
    product.backward()
    assert events_of(emulator) == [("product = x.prod()", "ProdBackward0", 1)]


def test_a_warning_inside_a_read_names_the_scripts_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Emulator():
            x = torch.ones(1, device="cuda", requires_grad=True)
            float(x * 2)
    (warning,) = caught
    assert "requires_grad" in str(warning.message)
    assert warning.filename == __file__


def test_nodes_of_two_threads_do_not_lend_each_other_their_lines(emulator):
    """Sequence numbers count per thread: what another thread made with the same number is not the line."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    mask = x > 0

    def elsewhere():
        for _ in range(5000):
            x.exp()

    thread = threading.Thread(target=elsewhere)
    picked = x[mask]
    thread.start()
    thread.join()
    picked.sum().backward()
    backward = [site for site in emulator.session().sites if site.in_backward]
    assert [site.line.code for site in backward] in (["picked = x[mask]"], ["picked.sum().backward()"])


def test_generated_code_is_nobodys_line(emulator, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])  # tests in several processes are ``python -c`` themselves
    stacks.library_of.cache_clear()
    namespace = {}
    exec("def read(x):\n    return x.sum().item()", namespace)
    namespace["read"](torch.ones(3, device="cuda"))
    (site,) = emulator.session().sites
    assert site.line.code == 'namespace["read"](torch.ones(3, device="cuda"))'
    assert [frame.file for frame in site.library_frames] == ["<string>"]


def test_what_called_the_command_is_no_part_of_a_stack(tmp_path: Path) -> None:
    """A console script is a file beside the interpreter, which nobody would tell from the user's own."""
    command = Path(stacks.__file__).parents[2] / "commands" / "check.py"
    captured: list[stacks.RawStack] = []
    names = {"capture": lambda: captured.append(stacks.capture(0))}
    exec(compile("def run():\n    capture()", str(tmp_path / "train.py"), "exec"), names)
    exec(compile("def main():\n    run()", str(command), "exec"), names)
    exec(compile("main()", str(tmp_path / "bin" / "gapless"), "exec"), names)
    files = [line.file for line in stacks.resolve(captured[0]) if line.is_user]
    assert str(tmp_path / "train.py") in files
    assert not any(file.endswith("gapless") for file in files)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_that_races_are_not_looked_for_is_said_where_there_are_streams(tells, streams, monkeypatch):
    monkeypatch.setattr("gapless.emulation.emulator.reports_storage_ends", lambda: tells)
    with Emulator() as emulator:
        x = torch.ones(3, device="cuda")
        if streams:
            with torch.cuda.stream(torch.cuda.Stream()):
                x + 1
        notes = emulator.session().notes
    assert any("races were not checked" in note for note in notes) == (streams and not tells)


def test_installed_code_is_the_users_own_where_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "mylayers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def read(x):\n    return x.sum().item()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    layers = importlib.import_module("mylayers")
    stacks.library_of.cache_clear()

    def place(*own: str) -> str:
        with Emulator(EmulatorOptions(own=own)) as emulator:
            layers.read(torch.ones(3, device="cuda"))
            (site,) = emulator.session().sites
        return site.line.file

    assert place() == place("layers") == __file__
    for own in ("mylayers", str(package), layers.__file__):
        assert place(own) == layers.__file__
