"""The command line: `lmtrain COMMAND ...`, one file a command in `commands/`."""
