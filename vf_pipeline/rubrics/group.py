"""Several rubrics as one: each with its own parser and objects, their rewards summed."""

from collections.abc import Sequence

from vf_pipeline import storage
from vf_pipeline.errors import ConfigError
from vf_pipeline.rubrics.rubric import OK, Outcome, RewardFunc, Rubric
from vf_pipeline.types import State


class RubricGroup(Rubric):
    """Scores with each rubric in turn; rewards and metrics of the same name are summed.

    Args:
        rubrics: the rubrics, at least one.

    Raises:
        ConfigError: there is none.
    """

    def __init__(self, rubrics: Sequence[Rubric]) -> None:
        if not rubrics:
            raise ConfigError("a RubricGroup needs at least one rubric", "RubricGroup([Rubric()])")
        super().__init__(parser=rubrics[0].parser)
        self.rubrics = list(rubrics)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a reward function to the first rubric."""
        self.rubrics[0].add_reward_func(func, weight)

    def get_reward_funcs(self) -> list[RewardFunc]:
        """Return the functions of all rubrics, in order."""
        return [func for rubric in self.rubrics for func in rubric.get_reward_funcs()]

    def get_reward_weights(self) -> list[float]:
        """Return the weights of all rubrics, in order."""
        return [weight for rubric in self.rubrics for weight in rubric.get_reward_weights()]

    def get_reward_func_names(self) -> list[str]:
        """Return the names of all rubrics' functions, in order."""
        return [name for rubric in self.rubrics for name in rubric.get_reward_func_names()]

    async def score(self, state: State) -> Outcome:
        """Return the summed outcome; unscored as soon as one rubric's is."""
        reward: float | None = 0.0
        metrics: dict[str, float] = {}
        outcomes: dict[str, str] = {}
        for rubric in self.rubrics:
            part = await rubric.score(state)
            both = reward is not None and part.reward is not None
            reward = reward + part.reward if both else None  # type: ignore[operator]
            for name, value in part.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value
            for name, text in part.outcomes.items():
                outcomes[name] = text if outcomes.get(name, OK) == OK else outcomes[name]
        # A sum that lacks one of its parts would be another quantity under the same name.
        metrics = {name: value for name, value in metrics.items() if outcomes[name] == OK}
        return Outcome(reward, metrics, outcomes)

    def digest(self) -> str:
        """Return what identifies the scoring: the digests of the rubrics, in order."""
        return storage.digest_json([rubric.digest() for rubric in self.rubrics])
