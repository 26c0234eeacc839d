"""One rank of many, the others of which are not there: a process group that moves nothing.

Every other rank is taken to do what this one does, with the same values, and to have come first.
"""
