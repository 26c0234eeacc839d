"""A folder for ``PYTHONPATH``: each child runs the ``sitecustomize.py`` in it when Python starts."""
