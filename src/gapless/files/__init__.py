"""Write, open and recognize files on the user's machine."""
