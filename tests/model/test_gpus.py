"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from gapless.errors import UsageError
from gapless.model import gpus


@pytest.mark.parametrize(
    ("asked", "name"),
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
def test_find_is_lenient(asked: str, name: str) -> None:
    assert gpus.find(asked).name == name


def test_every_gpu_is_found_by_each_of_its_names() -> None:
    for gpu in gpus.GPUS:
        for name in (gpu.name, gpu.name.upper(), *gpu.aliases):
            assert gpus.find(name) is gpu


def test_unknown_gpu_names_what_is_known() -> None:
    with pytest.raises(UsageError, match=r"no GPU 'a1000' is known.* Known are: t4, v100, .*b200, rtx5090"):
        gpus.find("a1000")
    with pytest.raises(UsageError, match="Did you mean rtx4090"):
        gpus.find("RTX 4091")


def test_figures_hang_together() -> None:
    for gpu in gpus.GPUS:
        assert 10 * 1024 <= gpu.total_memory / gpus.MIB <= 200 * 1024
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
    ("asked", "name"),
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
def test_cards_are_known_by_their_memory(asked: str, name: str) -> None:
    assert gpus.find_card(asked).name == name


def test_every_name_belongs_to_one_card() -> None:
    for card in gpus.CARDS:
        for name in (card.name, card.name.lower(), *card.aliases):
            assert gpus.find_card(name) is card


def test_a_card_has_a_little_less_than_its_box_says() -> None:
    for card in gpus.CARDS:
        gib = card.total_memory / 2**30
        box = min(
            (8, 10, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 256, 288),
            key=lambda one: abs(one - gib),
        )
        assert gib < box
        assert 0.9 * box < gib  # the B200 has 180 of 192, the H200 141 of 144


def test_a_card_that_cannot_be_emulated() -> None:
    with pytest.raises(UsageError, match="of the AMD Instinct MI300X only the memory is known here"):
        gpus.find("mi300x")
