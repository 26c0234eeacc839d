"""What rewrites are written with: files and edits of their bytes, places that wait, variables, reads."""
