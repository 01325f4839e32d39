"""The performance model: would this model train on these GPUs under this plan, and how fast?

`README.md` beside this file has the formulas with their sources, the notation, and the way through the files.
"""
