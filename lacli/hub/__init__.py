"""Models by name: what a name means, which file of a repository it is, and how that file comes into the hub's cache."""
