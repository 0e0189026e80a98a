"""Loads environments as a grader does and says what became of each: a program, run with a version of the library.

Reads a JSON object of name to source text and writes one of name to ``refused: ...``, ``failed: ...`` or
``loaded: ...``. The library is imported once, and each environment loads in a fork.
"""

import json
import os
import sys
import tempfile

from nodus.grader import loading
from nodus.grader.adapters import EnvironmentFault, Refused, prepare


def outcome(name, source):
    directory = tempfile.mkdtemp()
    with open(os.path.join(directory, f"{name}.py"), "w") as stream:
        stream.write(source)
    try:
        environment = loading.load(name, [directory], name, "1.0.0")
        return f"loaded: {len(environment.split('train'))} tasks"
    except Refused as refusal:
        return f"refused: {refusal}"
    except EnvironmentFault as fault:
        return f"failed: {fault}"


def in_a_fork(name, source):
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.write(write_end, outcome(name, source).encode()[:60000])
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as stream:
        said = stream.read().decode()
    os.wait()
    return said


prepare()
import verifiers  # noqa: E402 - loaded once; the hook came first

if not verifiers.__version__.startswith("0.4"):
    import datasets  # noqa: F401
    from verifiers import SingleTurnEnv  # noqa: F401

cases = json.load(sys.stdin)
sys.stdout.write("\n" + json.dumps({name: in_a_fork(name, source) for name, source in cases.items()}) + "\n")
