"""ik_llama.cpp, a second library, for processors only. It repacks weights, and its steps take less time a row."""
