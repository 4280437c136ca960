"""llama.cpp's own programs beside lacli's modes: the same prompts, in turns."""
