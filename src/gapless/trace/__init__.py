"""Kineto files as `Timeline` objects (no torch)."""
