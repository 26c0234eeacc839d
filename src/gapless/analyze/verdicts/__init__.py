"""The first lines of each report, one module for each kind."""
