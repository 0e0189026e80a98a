"""A single-turn environment as the Environments Hub has them: a parser, two reward functions, one dataset."""

from difflib import SequenceMatcher

import verifiers as vf
from datasets import Dataset
from words import texts

SYSTEM = "Reverse the text. Put the reversed text in <reversed_text> tags."


def load_environment():
    info = {"secret": "x"}
    rows = [{"question": text, "answer": text[::-1], "info": info} for text in texts()]
    parser = vf.XMLParser(["reversed_text"], answer_field="reversed_text")

    def similarity(completion, answer, **kwargs):
        return SequenceMatcher(None, parser.parse_answer(completion) or "", answer).ratio()

    rubric = vf.Rubric(funcs=[similarity, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), system_prompt=SYSTEM, parser=parser, rubric=rubric)
