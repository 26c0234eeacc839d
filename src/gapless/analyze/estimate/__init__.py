"""What a step takes on a GPU that is not there: a programme, the GPU's data sheet, and the replay."""
