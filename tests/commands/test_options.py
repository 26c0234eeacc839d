"""Each command receives one struct of options, and the struct holds their defaults."""

from __future__ import annotations

import click
import msgspec
import pytest
from click.testing import CliRunner

from gapless.commands._options import default_values, takes


class Inner(msgspec.Struct, frozen=True):
    depth: int = 3
    hidden: str = "unchanged"


class Outer(msgspec.Struct, frozen=True):
    inner: Inner = Inner(depth=4)
    names: tuple[str, ...] = ()
    loud: bool = True


received: list[tuple[Outer, str]] = []


@takes(Outer())
@click.command()
@click.option("--depth", type=int)
@click.option("--name", "names", multiple=True)
@click.option("--loud/--quiet")
@click.argument("file")
def command(file: str, options: Outer) -> None:
    received.append((options, file))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), Outer()),
        (("--depth", "7"), Outer(inner=Inner(depth=7))),
        (("--name", "a", "--name", "b", "--quiet"), Outer(names=("a", "b"), loud=False)),
    ],
)
def test_what_is_not_said_stays_as_the_struct_has_it(words: tuple[str, ...], options: Outer) -> None:
    result = CliRunner().invoke(command, [*words, "file.py"])
    assert result.exit_code == 0, result.output
    assert received.pop() == (options, "file.py")


def test_two_options_of_one_name_are_refused() -> None:
    class Twice(msgspec.Struct, frozen=True):
        inner: Inner = Inner()
        depth: int = 1

    with pytest.raises(AssertionError, match="depth"):
        default_values(Twice())
