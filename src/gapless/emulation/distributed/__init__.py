"""One rank of many, without the others: a process group that moves nothing.

Every other rank is assumed to do what this one does, with the same values, and to come first.
"""
