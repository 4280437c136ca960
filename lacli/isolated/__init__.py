"""A context of llama.cpp in a child process, which may hang or die without taking the answer with it."""
