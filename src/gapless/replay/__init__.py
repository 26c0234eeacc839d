"""Replay a `Timeline` under changed assumptions (without torch)."""
