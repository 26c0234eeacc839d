"""Where fla's functions are, and inputs that many of them take."""

from __future__ import annotations

from kernel_cases.cases import Modules

op = Modules("fla.ops")
module = Modules("fla.modules")

QKV = "q=BTHK k=BTHK v=BTHV"
UNIT = "q=BTHK/unit k=BTHK/unit v=BTHV"
