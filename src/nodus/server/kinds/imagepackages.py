"""What can be wrong with ``spec.package.image``, and with what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

from nodus.core.imagerefs import parse_image
from nodus.core.kinds.environment import EnvironmentSpec


def problems(spec: EnvironmentSpec) -> Iterator[tuple[str, str]]:
    """Yield each mistake as its field's path and a message; none where the package is no image."""
    if spec.package.image is None:
        return
    try:
        parse_image(spec.package.image)
    except ValueError as mistake:
        yield "spec.package.image", str(mistake)
    if spec.package.loader is not None:
        yield (
            "spec.package.loader",
            "an image says itself what it loads; set NODUS_ENVIRONMENT_LOADER in its Dockerfile and leave this out",
        )
    for index, grader in enumerate(spec.graders):
        if grader.kind == "ExactMatch":
            yield (
                f"spec.graders[{index}].kind",
                "'ExactMatch' compares answers inside Nodus, and an image keeps its answers; the kind is 'Program'",
            )
