"""What knows llama.cpp."""
