"""Mode auto: several sources of drafts, one tree a step, and as many rows as pay on this machine."""
