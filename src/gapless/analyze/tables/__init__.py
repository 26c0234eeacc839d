"""Tables with the numbers behind a verdict, one module for each kind of report."""
