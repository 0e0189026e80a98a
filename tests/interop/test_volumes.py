"""Volumes with the published client: made, listed, cleared, imported. Its uploads speak another protocol."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Desk, cells

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_volumes_are_made_shown_and_cleared(desk: Desk, ours: Desk) -> None:
    assert desk.ok("nodus create volume pub --size 1Gi --access-mode ReadWriteOnce") == "volume/pub created\n"
    ours.write("a.txt", "hello")
    assert ours.ok("nodus volume put pub a.txt") == "volume/pub revision 1\n"
    head, row = cells(desk.ok("nodus get volume pub"))
    assert dict(zip(head, row, strict=False)) | {"AGE": ""} == {
        "NAME": "pub", "PHASE": "Ready", "MODE": "ReadWriteOnce", "REVISION": "1", "USED": "5", "AGE": "",
    }  # fmt: skip
    assert "pub" in desk.ok("nodus describe volume/pub")
    program = """
        import nodus
        volume = nodus.Volume.from_name("pub")
        print([item["revision"] for item in volume.revisions()])
        volume.clear()
        print([item["revision"] for item in volume.revisions()])
        print(nodus.Volume.from_name("pub-new", create_if_missing=True).name)
    """
    assert desk.python(program).split("\n") == ["[1]", "[2, 1]", "pub-new", ""]
    assert ours.python(program).split("\n") == ["[2, 1]", "[3, 2, 1]", "pub-new", ""]
    assert desk.ok("nodus delete volume/pub volume/pub-new").count("deleted") == 2


def test_imports_are_asked_for_in_the_same_words(desk: Desk, ours: Desk) -> None:
    program = """
        import nodus
        nodus.Volume.import_from("imported", huggingface="Qwen/Qwen3-0.6B", size="1Gi")
        nodus.Volume.import_from("refused", url="http://169.254.169.254/latest", size="1Gi")
        nodus.Volume.import_from("archive", git="https://127.0.0.1:1/x.git", size="1Gi")
    """
    desk.python(program)
    desk.ok("nodus wait volume/imported --for=jsonpath='{.status.phase}'=Ready --timeout 60s")
    assert "config.json" in ours.ok("nodus volume ls imported")
    for name in ("refused", "archive"):
        desk.ok(f"nodus wait volume/{name} --for=jsonpath='{{.status.phase}}'=Failed --timeout 60s")
        assert desk.ok(f"nodus get volume {name} -o jsonpath='{{.status.reason}}'") == "SourceAddressRefused"
    ours.python(
        program.replace('https://127.0.0.1:1/x.git"', 'https://127.0.0.1:1/x.git", revision="main"')
    )  # the same again
    desk.ok("nodus delete volume/imported volume/refused volume/archive")
