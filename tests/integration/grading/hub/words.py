"""What the environments here are made of, for tests too, which have no ``verifiers``."""

WORDS = ["valley", "bridge", "copper", "garden", "silver", "window", "harbor", "meadow", "timber", "castle", "river"]
TRAIN = ["apple", "grape", "lemon", "mango", "peach", "olive", "melon", "berry"]
EVAL = ["plums", "dates"]
ROOMS = {"library": 3, "kitchen": 5, "cellar": 11, "attic": 7}


def texts(size: int = 40) -> list[str]:
    return [f"{WORDS[n % len(WORDS)]} {WORDS[(3 * n + 1) % len(WORDS)]} {n}" for n in range(size)]
