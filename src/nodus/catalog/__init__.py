"""The catalog as data: runtimes, environments and accelerators, loaded into project `nodus` by the server."""
