"""What runs code of completions: process 1 of a sandbox that holds no answers. Standard library only.

Mounted by itself: nothing of the environment, and nothing else of Nodus, is in that sandbox.
"""
