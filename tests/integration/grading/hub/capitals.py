"""A taskset of verifiers 0.4, found by ``__all__`` as the library finds it."""

import verifiers.v1 as vf

CITIES = {"France": "Paris", "Peru": "Lima", "Kenya": "Nairobi", "Norway": "Oslo", "Japan": "Tokyo"}


class Data(vf.TaskData):
    answer: str


class Capital(vf.Task[Data]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def names_it(self, task, trace) -> float:
        if trace.last_reply == "raise":
            raise ZeroDivisionError("a fault of the reward")
        return float(task.answer in trace.messages[-1].content)

    @vf.metric
    async def length(self, trace) -> float:
        return len(trace.last_reply)


class Capitals(vf.Taskset[Capital, vf.TasksetConfig]):
    def load(self):
        for land, city in CITIES.items():
            data = Data(prompt=f"Capital of {land}?", system_prompt="One word.", answer=city)
            yield Capital(data, self.config.task)


__all__ = ["Capitals"]
