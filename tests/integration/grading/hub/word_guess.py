"""A game of several turns, as ``wordle`` is one: every prompt is the same, and the secret is the row's answer."""

import verifiers as vf
from datasets import Dataset
from words import EVAL, TRAIN

PROMPT = "Guess the secret word of five letters. Reply with <guess>word</guess>."
RETURNS_STATE = not hasattr(vf, "stop")


def guesses(messages):
    found = [
        vf.XMLParser(["guess"], answer_field="guess").parse(text_of(m)).guess
        for m in messages
        if role(m) == "assistant"
    ]
    return [(word or "").strip().lower() for word in found]


def role(message):
    return message["role"] if isinstance(message, dict) else message.role


def text_of(message):
    return (message["content"] if isinstance(message, dict) else message.content) or ""


class WordGuess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        guess = guesses(messages)[-1]
        secret = state["answer"]
        state["won"] = guess == secret
        marks = "".join("G" if a == b else "Y" if a in secret else "-" for a, b in zip(guess, secret, strict=False))
        answer = [{"role": "user", "content": "Correct!" if state["won"] else f"{guess}: {marks}"}]
        if RETURNS_STATE:
            return answer, state
        if state["won"]:
            state["final_env_response"] = answer
        return answer


if RETURNS_STATE:

    async def is_completed(self, messages, state, **kwargs):
        at_limit = getattr(self, "max_turns_reached", None)
        return bool(state.get("won")) or (at_limit is not None and await at_limit(state))

    WordGuess.is_completed = is_completed
    WordGuess.__abstractmethods__ = frozenset()


def load_environment(max_turns: int = 4):
    parser = vf.XMLParser(["guess"], answer_field="guess")

    def solved(completion, answer, **kwargs):
        return float(answer in guesses(completion))

    def early(completion, answer, **kwargs):
        words = guesses(completion)
        return 1 / len(words) if answer in words else 0.0

    def partial(completion, answer, **kwargs):
        return max((sum(a == b for a, b in zip(w, answer, strict=False)) / 5 for w in guesses(completion)), default=0.0)

    rubric = vf.Rubric(funcs=[solved, early, partial], weights=[0.5, 0.5, 0.1], parser=parser)
    tables = [Dataset.from_list([{"question": PROMPT, "answer": word} for word in words]) for words in (TRAIN, EVAL)]
    return WordGuess(dataset=tables[0], eval_dataset=tables[1], parser=parser, rubric=rubric, max_turns=max_turns)
