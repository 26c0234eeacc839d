"""What the parts of the emulated device share while a script runs."""
