"""Gapless inside other tools: what is needed of them is imported when it is used."""
