"""The command line, one file a command: options become settings and one call, no logic."""
