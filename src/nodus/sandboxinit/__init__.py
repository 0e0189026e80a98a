"""Process one of a Sandbox: runs inside it, beside untrusted code; standard library only.

``main`` is the loop, ``spawning`` starts processes, ``files`` reads and writes files. The supervisor outside
(``server/compute/local/processhost.py``) is its only client.
"""
