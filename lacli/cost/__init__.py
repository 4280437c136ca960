"""What a step costs: the t(b) staircase of a model on a machine, measured, kept, and read for what pays."""
