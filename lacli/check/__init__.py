"""Is every mode's text plain decoding's own? Comparison, replay in other batch shapes, judges and the report."""
