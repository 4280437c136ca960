"""Models by name: what a name means, which file of a repository it is, and its download into the hub's cache."""
