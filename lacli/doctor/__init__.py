"""`lacli doctor`: what this installation can do, what is wrong with it, and how a user makes it better or faster."""
