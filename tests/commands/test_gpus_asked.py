"""``gapless check --gpu A,B --price …``: which GPU is emulated, and the table of all of them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Collection
from typing import Any

import fork_server
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.analyze.tables.offers_tables import offers_table
from gapless.analyze.verdicts.offers_verdict import offers_sentence
from gapless.commands._checking import CheckOptions
from gapless.commands._gpus import choose_gpus
from gapless.commands._installed_gpu import InstalledGpu, gpu_of_this_machine, installed_gpu
from gapless.errors import UsageError
from gapless.model import Environment, Report, Verdict
from gapless.model.estimate import Range
from gapless.model.gpus import CARDS, GPUS, find, find_card
from gapless.model.memory_report import Buffers, MemoryReport
from gapless.model.offer import Offer

NAMES = [name for card in CARDS for name in card.aliases]


def test_the_first_that_can_be_emulated_is() -> None:
    emulated, wanted = choose_gpus("mi300x, H100 ,l4", "mi300x=2.5")
    assert emulated == "H100"
    assert wanted is not None
    assert (wanted.gpus, wanted.prices) == (("mi300x", "H100", "l4"), {"mi300x": 2.5})


@pytest.mark.parametrize(
    ("installed", "emulated", "said"),
    [
        (None, None, ""),
        (InstalledGpu("NVIDIA H200", (9, 0), 141 << 30), "NVIDIA H200", ""),
        (
            InstalledGpu("NVIDIA H300 prototype", (9, 0), 140 << 30),
            "NVIDIA H200",
            "NVIDIA H300 prototype is in no",
        ),
    ],
)
def test_the_gpu_of_this_machine_is_emulated_unless_another_is_named(installed, emulated, said, monkeypatch):
    name, text = gpu_of_this_machine(lambda: installed)
    assert name == emulated
    assert said in text
    monkeypatch.setattr(gpu_of_this_machine, "__defaults__", (lambda: installed,))
    assert CheckOptions().decide(0.0).capture.emulator.gpu == emulated
    assert CheckOptions(gpus="l4").decide(0.0).capture.emulator.gpu == "l4"


class FakeDriver:
    """The driver's library with one GPU, of which calls named in `failing` return errors."""

    def __init__(self, failing: Collection[str] = (), lacking: Collection[str] = ()) -> None:
        self.failing, self.lacking = failing, lacking
        self.calls: list[str] = []
        self.wanted_gpu: object = None

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.lacking:
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            if name.startswith("nvmlDeviceGetHandleBy"):
                self.wanted_gpu = args[0]
                if isinstance(args[0], int) and args[0] >= 1 << 64:
                    raise ctypes.ArgumentError
                return int(self.wanted_gpu not in (0, b"GPU-1"))
            if name == "nvmlDeviceGetName":
                args[1].value = b"NVIDIA L4"
            return int(name in self.failing)

        return call


@pytest.mark.parametrize(
    ("visible", "wanted_gpu", "is_known"),
    [
        (None, 0, True),
        (" 0 ,1", 0, True),
        ("7", 7, False),
        ("9" * 30, int("9" * 30), False),
        ("GPU-1,0", b"GPU-1", True),
        ("", b"", False),
        ("-1", b"-1", False),
        ("²", "²".encode(), False),
        ("\udcff", b"\xff", False),
    ],
)
def test_the_driver_is_wanted_gpu_the_first_visible_gpu(visible, wanted_gpu, is_known, monkeypatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    installed = installed_gpu()
    assert driver.wanted_gpu == wanted_gpu
    assert (installed.name if installed else None) == ("NVIDIA L4" if is_known else None)
    assert driver.calls[-1] == "nvmlShutdown"


DRIVER_CALLS = (
    "nvmlInit_v2", "nvmlDeviceGetName", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo",
)  # fmt: skip


@pytest.mark.parametrize("name", DRIVER_CALLS)
def test_a_driver_that_does_not_answer_is_no_gpu(name: str, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for driver in (FakeDriver(failing=[name]), FakeDriver(lacking=[name])):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, driver=driver: driver)
        assert installed_gpu() is None
        assert ("nvmlShutdown" in driver.calls) == (name != "nvmlInit_v2")


def test_one_gpu_is_no_table_and_one_with_a_price_is() -> None:
    assert choose_gpus(None, "") == (None, None)
    assert choose_gpus("t4", "") == ("t4", None)
    assert choose_gpus("t4", "T4=0.35")[1].prices == {"t4": 0.35}


@pytest.mark.parametrize(
    ("gpus", "price", "text"),
    [
        ("a100,b100", "", "unknown GPU 'b100'. Did you mean"),
        ("a100,", "", "--gpu 'a100,' has an empty name"),
        ("mi300x", "", "is not a CUDA device and cannot be emulated. Name a CUDA device first"),
        (None, "a100=1.8", "--price is the price per hour of a GPU named by --gpu"),
        ("a100,l4", "h100=1.8", "h100 is not in --gpu a100,l4"),
        ("a100,l4", "a100", "'a100' is not a price per hour"),
        ("a100,l4", "a100=cheap", "'a100=cheap' is not a price"),
        ("a100,l4", "a100=-1", "'a100=-1' is not a price"),
        ("a100,l4", "a100=nan", "'a100=nan' is not a price"),
        ("a100,l4", "=1", "'=1' is not a price"),
        ("a100,l4", "a100=1,A100=2", "--price names A100 twice"),
        ("a100,l4", "a100=1,,l4=2", "--price 'a100=1,,l4=2' has an empty name"),
    ],
)
def test_what_is_wrong_is_said(gpus: str | None, price: str, text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("'", "['‘’]").replace("(", "\\(")):
        choose_gpus(gpus, price)


@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6), st.data())
def test_every_list_of_known_names_is_taken(names: list[str], data) -> None:
    priced = data.draw(st.lists(st.sampled_from(names), unique=True))
    prices = {name: data.draw(st.floats(0, 1e4)) for name in priced}
    text = ",".join(f"{name}={price!r}" for name, price in prices.items())
    if not any(find_card(name) in GPUS for name in names):
        return
    emulated, wanted = choose_gpus(",".join(names), text)
    assert emulated is not None
    assert find(emulated) in GPUS
    assert wanted is not None
    assert list(wanted.gpus) == names
    assert wanted.prices == prices


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_is_taken_or_refused_in_a_sentence(gpus: str, price: str) -> None:
    try:
        emulated, wanted = choose_gpus(gpus, price)
    except UsageError:
        return
    assert emulated is not None
    assert wanted is None or emulated in wanted.gpus


def test_a_million_tokens_cost_what_their_steps_take() -> None:
    """512 tokens in 2 ms are 256,000 a second: a million take 3.90625 s, at 3,600 an hour 3.90625."""
    from gapless.analyze.offers import with_costs
    from gapless.model.estimate import Count, Estimate, StepThroughput

    done = StepThroughput(samples=Count(number=8), tokens=Count(number=512))
    step = Range(1, 2_000_000, 3_000_000)
    free = Offer(gpu="x", step=step, throughput=done, unit="tokens")
    (offer,) = with_costs([msgspec.structs.replace(free, price=3600.0)], (), None, 1000)
    assert offer.each == 512
    assert (offer.cost, offer.epoch, offer.run) == (pytest.approx(3.90625), -1.0, pytest.approx(2.0))
    assert with_costs([free], (), Estimate(step=step), 0) == (free,)


@pytest.mark.parametrize(
    ("overlapped", "waits"), [(False, (8_000_000, 8_000_000)), (True, (8_000_000, 6_000_000))]
)
def test_what_is_late_is_late_on_every_gpu(overlapped: bool, waits: tuple[int, int]) -> None:
    """A batch takes 8 ms more than the step of 2 ms; workers make it while a step of 4 ms runs, too."""
    from gapless.analyze.offers import with_costs
    from gapless.model.estimate import Count, Estimate, StepThroughput

    done = StepThroughput(samples=Count(number=8))
    fast, slow = Range(2_000_000, 2_000_000, 2_000_000), Range(4_000_000, 4_000_000, 4_000_000)
    late = Range(8_000_000, 8_000_000, 8_000_000)
    estimate = Estimate(step=fast, waiting=late, overlapped=overlapped)
    gpus = [
        Offer(gpu="own", step=fast, throughput=done, unit="samples", price=3600.0, emulated=True),
        Offer(gpu="slower", step=slow, throughput=done, unit="samples", price=3600.0),
    ]
    costs = with_costs(gpus, (), estimate, 0)
    assert tuple(cost.waiting.likely for cost in costs) == waits
    assert [offer.cost for offer in costs] == [pytest.approx(offer.whole.likely / 8e3) for offer in costs]


def test_gpus_that_leave_too_little_for_nccl_are_named() -> None:
    gib = 1 << 30
    small = Offer(gpu="NVIDIA L4", fits=True, needs=21 * gib, has=22 * gib, step=Range(1, 2, 3))
    large = msgspec.structs.replace(small, gpu="NVIDIA H100", has=79 * gib)
    memory = MemoryReport(sentence="", nccl=Buffers(groups=1, least=2 * gib, most=3 * gib))
    report = Report(
        verdict=Verdict(sentence=""), environment=Environment(), offers=(small, large), memory=(memory,)
    )
    (why,) = offers_sentence(report)
    assert why == "It fits both GPUs (too little is left for NCCL on the L4)"
    table = offers_table(report)
    assert table is not None
    assert [row.cells[1] for row in table.rows] == ["by itself", "yes"]
    assert any("NCCL takes 2–3 GiB for 1 process group more" in note for note in table.notes)


SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
big = torch.cuda.get_device_properties(0).total_memory > 20 * 2**30
for step in range(5):
    batch = torch.ones(8192, 256).cuda()
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WEIGHTS = 4 * (256 * 1024 + 1024 + 1024 * 256 + 256)
HIDDEN = 4 * 8192 * 1024


@pytest.fixture(scope="module")
def gpu_reports(tmp_path_factory: pytest.TempPathFactory):
    """What JSON says of four GPUs, what it says when the session is shown again, and the text."""
    pytest.importorskip("torch", minversion="2.10")
    folder = tmp_path_factory.mktemp("asked")
    (folder / "train.py").write_text(SCRIPT)

    def gapless(*words: str) -> str:
        run = fork_server.run(("-m", "gapless", *words), folder)
        assert run.returncode == 0, run.stderr
        return run.stdout

    words = ("--gpu", "t4,a100,h100,mi300x", "--price", "t4=0.5,h100=3", "--steps", "2", "-o", "run.json")
    checked = gapless("check", "-q", "--no-loader", "-f", "json", *words, "train.py")
    again = gapless("show", "-f", "json", "run.json")
    return json.loads(checked.splitlines()[-1]), json.loads(again), gapless("show", "run.json")


def test_parts_of_the_peak_are_those_of_a_hand_reckoning(gpu_reports) -> None:
    """The peak is in backward, between the two layers: the first one's gradients are not there yet."""
    (memory_use,) = gpu_reports[0]["memory"]
    parts = {part["kind"]: part for part in memory_use["peak"]["parts"]}
    assert parts["parameter"]["bytes"] == WEIGHTS
    assert parts["optimizer"]["bytes"] == 2 * WEIGHTS
    assert parts["gradient"]["bytes"] == 4 * (1024 * 256 + 256)
    assert parts["activation"]["bytes"] - HIDDEN in (4, 8)  # the loss, this step's and perhaps the last one's
    assert (parts["activation"]["module"], parts["activation"]["module_bytes"]) == ("Sequential.1", HIDDEN)
    assert parts["temporary"]["bytes"] == 2 * HIDDEN
    assert parts["batch"]["bytes"] == 4 * 8192 * 256
    assert parts["workspace"]["bytes"] == 2 * 8_519_680
    allocated = memory_use["peak"]["allocated"]
    assert 0 <= allocated - sum(part["bytes"] for part in parts.values()) < 512 * 40


def test_flops_and_samples_are_those_of_a_hand_reckoning(gpu_reports) -> None:
    done = gpu_reports[0]["estimate"]["throughput"]
    product = 2 * 8192 * 256 * 1024
    assert (
        done["flops"] == 5 * product
    )  # two forward, two for the second layer's backward, one for the first's
    assert (done["repeated"], done["unit"], done["peak"]) == (0, "fp32", 8.1)
    assert (done["samples"]["number"], done["tokens"]) == (8192, None)
    assert set(done["phases"]) == {"forward", "backward", "optimizer"}


def test_each_gpu_is_reckoned_from_the_one_run(gpu_reports) -> None:
    t4, a100, h100, mi300x = gpu_reports[0]["offers"]
    assert [gpu["emulated"] for gpu in (t4, a100, h100, mi300x)] == [True, False, False, False]
    assert t4["needs"] == gpu_reports[0]["memory"][0]["baseline"]["peak_reserved"] == a100["needs"]
    assert t4["step"] == gpu_reports[0]["estimate"]["step"]
    # Two workspaces of cuBLAS have 32 MiB on Hopper, and segments are of 2 MiB: they do not share one of 20.
    assert h100["needs"] - a100["needs"] in range(40 << 20, 49 << 20)
    assert mi300x["needs"] > h100["needs"]
    assert all(gpu["fits"] and gpu["source"] for gpu in (t4, a100, h100, mi300x))
    assert t4["step"]["likely"] > a100["step"]["likely"] > h100["step"]["likely"]
    assert h100["cost"] == pytest.approx(1e6 / 8192 * h100["step"]["likely"] / 3600e9 * 3)
    assert a100["cost"] == a100["price"] == -1


def test_a_session_shown_again_says_the_same(gpu_reports) -> None:
    checked, again, _ = gpu_reports
    assert again["offers"] == checked["offers"]
    assert again["asked"] == checked["asked"]
    assert again["why"] == checked["why"]


def test_the_text_names_who_asks_for_the_gpu_and_where_figures_are_from(gpu_reports) -> None:
    checked, _, text = gpu_reports
    assert [row["line"] for row in checked["asked"]] == [7]
    text_line = " ".join(text.split())
    assert (
        "the script asks which GPU it has (train.py:7) and may behave differently on another one" in text_line
    )
    assert "NVIDIA, H100 data sheet" in text_line
    assert "Memory: peak" in text_line
    assert "on the Tesla T4: fits; weights" in text_line
    assert "price per hour: Tesla T4 0.5, H100 80GB HBM3 3" in text_line


def test_a_too_small_gpu_is_distinguished_from_a_large_enough_one(python, write) -> None:
    pytest.importorskip("torch", minversion="2.10")
    held = "held = torch.empty(12 * 2**30, dtype=torch.uint8, device='cuda')"  # nobody writes to it
    write("train.py", SCRIPT.replace("8192", "64").replace("big =", f"{held}\nbig ="))
    words = ("--gpu", "a100,rtx4060,t4", "--steps", "1", "--no-loader", "-f", "json")
    process = python("-m", "gapless", "check", "-q", *words, "train.py")
    assert process.returncode == 0, process.stderr
    a100, small, t4 = json.loads(process.stdout.splitlines()[-1])["offers"]
    assert (a100["fits"], small["fits"], t4["fits"]) == (True, False, True)
    assert small["needs"] - small["has"] > 4 << 30
