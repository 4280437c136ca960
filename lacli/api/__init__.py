"""The model that programs use, and the thread that decodes all its answers together."""
