"""What the script compiles, and with which calls: taken down to be compiled afterwards."""
