"""The screen, and the user's input."""
