"""Models by name: what a name means, which file of a repository to load, and its download into the hub's cache."""
