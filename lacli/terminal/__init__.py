"""The screen, and a user's input."""
