"""The command line, one file a command. A command turns its options into settings and calls another package."""
