"""The options of ``gapless check`` about whether a run fits, what would make it fit, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from gapless.model.programme import Programme


class Fit(msgspec.Struct, frozen=True):
    """The values of these options: the argument to search, changes to run with, whether to try others,
    prices, whether to only save the session, and the speeds of the host, of GPU links and of the network.
    """

    find: str = ""
    changes: tuple[str, ...] = ()
    tries: bool = True
    price: str = ""
    silent: bool = False
    host: str = "measure"
    link: float | None = None
    network: float | None = None

    def with_links(self, programme: Programme) -> Programme:
        """Return `programme` with the user's --link and --network bandwidths, in GB/s one way."""
        network, link = self.network or programme.network, self.link or programme.link
        gpu = msgspec.structs.replace(programme.gpu, link=link) if link else programme.gpu
        return msgspec.structs.replace(programme, network=network, link=link, gpu=gpu)


_OPTIONS = (
    click.option(
        "--host",
        metavar="SPEED",
        envvar="GAPLESS_HOST",
        show_default=True,
        help="Speed of the CPU next to the GPU: measure (as fast as this machine, measured once in half a "
        "second), fast, usual, slow, or a factor such as 0.8 for 0.8 times the usual time per "
        "operator.",
    ),
    click.option(
        "--price",
        metavar="NAME=P,...",
        help="Price per hour of each GPU; the table then shows the price per million tokens or samples.",
    ),
    click.option(
        "--link",
        metavar="GB/S",
        type=click.FloatRange(0, min_open=True),
        help="Bandwidth between the GPUs of a machine, one way, instead of the data sheet's NVLink or PCIe.",
    ),
    click.option(
        "--network",
        metavar="GB/S",
        type=click.FloatRange(0, min_open=True),
        help="Network bandwidth between machines per GPU, one way; default 50 (400 Gbit/s).",
    ),
    click.option(
        "--find",
        metavar="ARG:A..B",
        help="Find the largest value of SCRIPT's argument ARG, from A to B, that fits the GPU: "
        "batch_size:8..256 (add :8 to try multiples of eight only). SCRIPT runs once for each value "
        "tried.",
    ),
    click.option(
        "--tries/--no-tries",
        help="With --memory: if SCRIPT does not fit, run it again with changes that may help; on by default.",
    ),
    click.option(
        "--with",
        "changes",
        metavar="CHANGE",
        multiple=True,
        help="Run SCRIPT as if it were changed: checkpoint=CLASS (recompute the forward pass of these "
        "modules in backward), set_to_none (zero_grad sets gradients to None). Can be repeated.",
    ),
    click.option("--silent", is_flag=True, hidden=True, help="Save the session without a message."),
)


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to `command`, whose options contain a `Fit`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
