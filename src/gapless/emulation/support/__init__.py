"""What all parts of the emulated device use, and that knows nothing of them."""
