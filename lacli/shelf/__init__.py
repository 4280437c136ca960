"""The models on this disk: what is there, what one of them is and needs, and how one comes and goes."""
