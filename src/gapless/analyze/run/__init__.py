"""How a run divides into steps and phases, and when it has lasted long enough."""
