"""The step of a projection as a timeline: what every rank does when, to the picosecond.

``columns.py`` declares what a timeline is. ``layers.py`` lays out one layer, ``blocks.py`` the
layers of a stage with data parallelism beside them, ``ranks.py`` the step of a pipeline rank, and
``build.py`` all of them. Nothing here computes a time: what the rows of the operation table, the
host and data parallelism take stands in the evaluation, and is put in its place.
"""
