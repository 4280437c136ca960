"""Mode auto: several sources of guesses, one tree a step, and as many rows as pay on this machine."""
