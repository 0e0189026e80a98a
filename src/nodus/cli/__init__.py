"""The command line: one module a command, each at most 150 lines; nothing heavy is imported before it is needed."""
