"""The only folder that knows llama.cpp; `library.py` is the only file that imports it."""
