"""All calls of llama.cpp; `library.py` is the only file that imports llama_cpp."""
