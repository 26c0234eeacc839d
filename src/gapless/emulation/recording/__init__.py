"""What happens on the emulated device, counted by place and step, and in order for the last steps."""
