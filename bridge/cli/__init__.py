"""The command line: it reads arguments and environment, and prints."""
