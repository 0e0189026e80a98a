"""A group of two environments, one of which has held-out rows of its own."""

import reverse_text
import verifiers as vf
import word_guess


def load_environment():
    return vf.EnvGroup([reverse_text.load_environment(), word_guess.load_environment()], env_names=["reverse", "guess"])
