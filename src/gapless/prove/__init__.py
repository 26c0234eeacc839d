"""Two callables side by side: whether they compute the same, and which one waits less and is faster."""
