"""ik_llama.cpp as a second engine, for processors: its weights are repacked, and its rows are cheaper."""
