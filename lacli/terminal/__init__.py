"""The screen, charts as text, and what an interrupt does."""
