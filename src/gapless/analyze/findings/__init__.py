"""Findings made of what rules say, and their order."""
