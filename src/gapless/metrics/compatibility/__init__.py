"""What code written for TorchMetrics asks for: its checkpoints, and its classes as base classes."""
