"""Pictures of sweeps, of the cost of rows and of the attention mask, drawn with matplotlib."""
