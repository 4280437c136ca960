"""What lies behind the paper's numbers: its Table 3, its scaling law, the pool's growth, how blocks converge."""
