"""Several copies of a model decode one text, each a share of every step's branches (section 3.4 of the paper)."""
