"""The numbers beside a verdict as tables, one module for each kind of thing that is asked about."""
