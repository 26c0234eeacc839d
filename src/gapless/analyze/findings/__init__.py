"""Findings made from what rules return, and their order."""
