"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from gapless.errors import UsageError
from gapless.model import gpus


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100 40", "NVIDIA A100-SXM4-40GB"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia geforce rtx 5090", "NVIDIA GeForce RTX 5090"),
        ("V100", "Tesla V100-SXM2-16GB"),
        ("v100-32gb", "Tesla V100-SXM2-32GB"),
        ("T4", "Tesla T4"),
        ("B200", "NVIDIA B200"),
    ],
)
def test_find_is_lenient(text: str, name: str) -> None:
    assert gpus.find(text).name == name


def test_every_gpu_is_found_by_each_of_its_names() -> None:
    for gpu in gpus.GPUS:
        for name in (gpu.name, gpu.name.upper(), *gpu.aliases):
            assert gpus.find(name) is gpu


def test_unknown_gpu_names_what_is_known() -> None:
    with pytest.raises(UsageError, match=r"unknown GPU 'a1000'.* Known GPUs: t4, v100, .*b200, .*rtx5090"):
        gpus.find("a1000")
    with pytest.raises(UsageError, match="Did you mean rtx4090"):
        gpus.find("RTX 4091")


def test_figures_hang_together() -> None:
    for gpu in gpus.GPUS:
        assert 7 * 1024 <= gpu.total_memory / gpus.MIB <= 200 * 1024
        assert gpu.source
        assert gpu.fp8 >= 0
        assert gpu.bf16 in (0, gpu.fp16)
        assert gpu.tf32 == 0 or gpu.fp32 <= gpu.tf32 < gpu.fp16
        assert gpu.fp8 == 0 or gpu.fp8 == pytest.approx(2 * gpu.fp16, rel=0.02)
        assert (gpu.fp8 > 0) == (gpu.capability >= (8, 9))
        assert (gpu.bf16 > 0) == (gpu.capability >= (8, 0))
        assert gpu.max_threads_per_sm % gpu.warp_size == 0
        assert gpu.shared_memory_per_block_optin <= gpu.shared_memory_per_sm


def test_fp32_peak_follows_from_processors_and_clock() -> None:
    """Two flops per core and cycle; 64 or 128 cores per multiprocessor."""
    for gpu in gpus.GPUS:
        cores = 64 if gpu.capability in {(7, 0), (7, 5), (8, 0)} else 128
        flops = 2 * cores * gpu.multi_processor_count * gpu.clock * 1e6 / 1e12
        assert gpu.fp32 == pytest.approx(flops, rel=0.08), gpu.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mi300x", "AMD Instinct MI300X"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("MI250", "AMD Instinct MI250X"),
        ("rtx 3060", "NVIDIA GeForce RTX 3060"),
        ("RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 5080", "NVIDIA GeForce RTX 5080"),
        ("h100", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_cards_are_known_by_their_memory(text: str, name: str) -> None:
    assert gpus.find_card(text).name == name


def test_every_name_belongs_to_one_card() -> None:
    for card in gpus.CARDS:
        for name in (card.name, card.name.lower(), *card.aliases):
            assert gpus.find_card(name) is card


def test_a_card_has_a_little_less_than_its_box_says() -> None:
    for card in gpus.CARDS:
        gib = card.total_memory / 2**30
        box = min(
            (8, 10, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 256, 288),
            key=lambda size: abs(size - gib),
        )
        assert gib < box
        assert 0.9 * box < gib  # the B200 has 180 of 192, the H200 141 of 144


def test_bandwidth_follows_from_the_bus() -> None:
    """No memory is faster than 32 Gbit/s a pin: a bus of so many bits moves at most that."""
    for gpu in gpus.GPUS:
        assert gpu.bandwidth <= gpu.memory_bus / 8 * 32


def test_peaks_of_consumer_cards_are_those_of_the_white_papers() -> None:
    """Ampere GA102, Ada and RTX Blackwell: dense, accumulating in fp32."""
    for name, fp32, fp16, fp8 in (
        ("rtx3080", 29.8, 59.5, 0),
        ("rtx3090", 35.6, 71, 0),
        ("rtx4080", 48.7, 97.5, 194.9),
        ("rtx4090", 82.6, 165.2, 330.3),
        ("rtx5080", 56.3, 112.6, 225.1),
        ("rtx5090", 104.8, 209.5, 419),
    ):
        gpu = gpus.find(name)
        assert (gpu.fp32, gpu.fp16, gpu.fp8) == pytest.approx((fp32, fp16, fp8), rel=0.005), name


def test_workspaces_of_cublas() -> None:
    """CublasHandlePool.cpp: :4096:2:16:8; 32 MiB for 9.0 and rocBLAS, 128 MiB for gfx94 and gfx95."""
    sizes = {name: gpus.find_card(name).workspace for name in ("a100", "h200", "b200", "mi210", "mi300x")}
    assert sizes == {
        "a100": 8_519_680,
        "h200": 32 << 20,
        "b200": 8_519_680,
        "mi210": 32 << 20,
        "mi300x": 128 << 20,
    }


def test_a_card_that_cannot_be_emulated() -> None:
    with pytest.raises(
        UsageError, match="the AMD Instinct MI300X is not a CUDA device and cannot be emulated"
    ):
        gpus.find("mi300x")
