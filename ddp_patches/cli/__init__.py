"""The command line. One module per command; nothing else in the package imports from here."""
