"""Recording: a training of plain torch noted in its own process, one file of each rank.

``automatic`` begins and ends it; ``record`` and ``phases`` note what happens; ``recorded`` is what
a file has, and ``recorded_file`` appends to it and thins it.
"""
