"""Types and pure rules shared by every part of Nodus: errors, kinds, money, ids, selectors, patches and time.

Nothing here does I/O; the only dependency is pydantic (and only the kinds import it).
"""
