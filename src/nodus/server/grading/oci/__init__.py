"""Environments from OCI images: pulled by digest, checked, unpacked into root file systems that sandboxes see."""
