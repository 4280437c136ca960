"""The screen, and what an interrupt does."""
