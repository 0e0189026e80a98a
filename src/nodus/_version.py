"""The distribution's version, read by the build, `nodus --version` and the runtime digests."""

__version__ = "0.1.0"
