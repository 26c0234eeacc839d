"""Names that PyTorch gives to spans, where more than one room asks for them."""

from __future__ import annotations

import re

LOADING = re.compile(r"enumerate\(DataLoader\)#.*\.__next__|enumerate\(DataPipe\)#")
"""What the training process spends on its next batch."""
