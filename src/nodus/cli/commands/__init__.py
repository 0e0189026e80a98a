"""One module for each command of ``nodus``; its click command is called ``command``."""
