"""What `benchmarks/simulate_lp.py` is made of: devices that compute nothing, what they would take, and its tables."""
