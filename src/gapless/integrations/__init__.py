"""Gapless inside other tools, which are imported only when used."""
