"""The first lines of every answer, one module for each kind of thing that is asked about."""
