"""Mathematics by the library's own MathRubric, which has a pool of processes."""

import verifiers as vf
from datasets import Dataset


def load_environment():
    rows = [{"question": f"What is {n} / 4? Box it.", "answer": f"{n}/4"} for n in range(5)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.MathRubric())
