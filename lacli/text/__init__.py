"""Texts outside of the model: chat templates, calls, reasoning, JSON schemas, files, records and words for numbers."""
