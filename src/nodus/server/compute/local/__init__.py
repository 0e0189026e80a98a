"""The local backend: supervised processes in bubblewrap on this machine."""
