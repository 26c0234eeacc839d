"""Create a Unix socket at a path."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def a_socket(path: Path) -> str:
    """Make a socket at `path`, and return the name."""
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        server.bind(path.name)
        os.chdir(folder)
    return str(path)
