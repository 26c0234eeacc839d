"""What a run asks of the emulated GPU's memory, and which names of the script keep it."""
