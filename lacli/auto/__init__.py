"""Mode auto: drafts from the sequence itself, one tree a step, and as many rows as save time on this machine."""
