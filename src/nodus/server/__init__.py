"""The control plane: the HTTP API, the store, the controllers and the compute backends, in one process."""
