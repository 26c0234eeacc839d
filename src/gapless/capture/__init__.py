"""Running somebody's script or block while something looks on."""
