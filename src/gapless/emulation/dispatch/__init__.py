"""What ATen and Python ask of the emulated device, operator by operator."""
