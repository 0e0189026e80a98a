"""What Volumes are imported from, besides the model hub: a URL, a git repository, a bucket.

Everything here runs in the import's own process (``nodus.server.training.importer``). Names, sizes and contents come
from strangers: paths are checked, sizes are bounded while bytes arrive, and only public addresses are connected to.
"""
