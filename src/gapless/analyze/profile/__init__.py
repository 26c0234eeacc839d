"""`Timeline` to `Profile`: one pure function per number, one module per kind of number."""
