"""A kit for machines with a CUDA compiler and no network: build there, expand the 7M model, measure, report.

`run.py` is the entry, README.md says how to use it.
"""
