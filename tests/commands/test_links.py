"""``gapless check --link`` and ``--network``: how the GPUs are joined, where the data sheet does not say."""

from __future__ import annotations

import pytest

from gapless.commands import main
from gapless.commands._fit import Fit
from gapless.model.programme import GpuRates, Programme


def test_what_the_user_says_stands_for_the_data_sheet() -> None:
    sheet = Programme(gpu=GpuRates(name="NVIDIA A40", link=56.0, pcie=32.0))
    assert Fit().with_links(sheet) == sheet
    said = Fit(link=300.0, network=12.5).with_links(sheet)
    assert (said.gpu.link, said.link, said.network) == (300.0, 300.0, 12.5)
    assert Fit(network=25.0).with_links(said).gpu.link == 300.0


@pytest.mark.parametrize("option", ["--link", "--network"])
def test_a_link_that_moves_nothing_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", option, "0", "train.py"]) == 2
    assert option in capsys.readouterr().err
