"""Where a test of TorchMetrics' own differs on purpose: how the test begins, and why."""

INTENDED: dict[str, str] = {}
