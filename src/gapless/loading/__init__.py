"""The input pipeline, measured, predicted and fed."""
