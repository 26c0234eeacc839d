"""A failure of the emulation itself names itself and the operator; what torch refuses stays torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.errors import EmulationDefect


def test_an_internal_error_names_the_operator_and_is_in_the_report() -> None:
    with Emulator() as emulator:
        x = torch.ones(3, device="cuda", requires_grad=True)
        loss = (x * 2).sum()
        emulator.core.placement.memory = object()  # type: ignore[assignment]
        with pytest.raises(
            EmulationDefect, match=r"while emulating aten::\S+: .*gapless/emulation/[\w/]+\.py:\d+"
        ):
            x + 1
        with pytest.raises(EmulationDefect, match="while emulating aten::ones_like"):
            loss.backward()
        emulator.core.placement.memory = None
        notes = [note for note in emulator.session().notes if "please report it" in note]
    assert len(notes) == 2


CALLS: dict[str, Callable[[Any], Any]] = {
    "to, too many": lambda g: g.to(1, 2, 3, 4, 5, 6),
    "to, unknown": lambda g: g.to(unknown=1),
    "new_tensor": lambda g: g.new_tensor(),
    "attention": lambda g: torch.nn.functional.scaled_dot_product_attention(g),
    "tensor": lambda g: torch.tensor(),  # type: ignore[call-arg]
    "type": lambda g: g.type(3),
    "type_as": lambda g: g.type_as(3),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises(TypeError) as plain:
        CALLS[name](torch.ones(3))
    with Emulator():
        tensor = torch.ones(3, device="cuda")
        with pytest.raises(TypeError) as emulated:
            CALLS[name](tensor)
    assert str(emulated.value).split("(")[0] == str(plain.value).split("(")[0]
