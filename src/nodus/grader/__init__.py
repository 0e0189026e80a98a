"""``nodus-env``: lists an environment's tasks and grades completions, inside a sandbox or from a shell.

Standard library only, and little of it (no dataclasses, which load ``inspect``): every completion is graded in a fork,
and a fork costs what there is to copy. Nothing here imports the rest of Nodus, so that the directory can be mounted,
or copied into an image, by itself.
"""

PROTOCOL_VERSION = 1
"""Changes when a verdict could: the identity of task ids, the order of tasks, or what a reward becomes."""
