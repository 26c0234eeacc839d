"""Requests of a run for the emulated GPU's memory, and the variables of the script that keep it."""
