"""One file for each package: what stands in for it, and what is changed in the real one where there is one.

A file is named as the package is imported. ``PACKAGE`` says what stands in for it. ``installed(module,
patches)`` is told the real one right after its import, and ``while_importing(patches)`` gives a context
to import it in.
"""
