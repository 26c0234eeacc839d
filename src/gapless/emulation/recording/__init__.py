"""Recording of a run on the emulated device: waits and marks by place and step, and the last steps in
order."""
