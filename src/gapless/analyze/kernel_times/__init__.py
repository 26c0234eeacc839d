"""How long operators take on a GPU that is not there."""
