"""What every environment has: examples, the way to the model, a parser and a rubric.

How one example is played is left to ``rollout``; ``MultiTurnEnv`` is the one to build on.
Deliberately lacks the running of many rollouts: that is the runner's work.
"""

import difflib
import inspect
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from vf_pipeline.environments.hooks import cleanup, maybe_await, teardown
from vf_pipeline.environments.rows import Row, RowFormat, read_rows
from vf_pipeline.errors import ConfigError, EmptyResponseError
from vf_pipeline.parsers import Parser
from vf_pipeline.rubrics import Rubric
from vf_pipeline.types import Example, Message, Messages, SamplingArgs, State

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Split = Literal["train", "eval"]


class Environment(ABC):
    """A task that a model can be measured on.

    Rows have ``prompt`` (messages or text) or ``question``, and optionally ``answer``, ``info`` (a
    dict or its JSON) and ``task``. Further keyword arguments become attributes.

    Args:
        dataset: rows to train on, a ``datasets.Dataset`` or a list of dicts.
        eval_dataset: rows to measure on; default: those of ``dataset``.
        system_prompt: put before prompts that have no system message.
        few_shot: messages put before the row's own.
        parser: takes the answer out of a completion.
        rubric: scores a rollout.
        sampling_args: arguments of every model call; those of a rollout win.
        message_type: "chat", or "completion" for text in and text out.
        oai_tools: tool definitions in OpenAI's form, sent with every chat request.
        env_id: the id under which the environment is known.

    Raises:
        ConfigError: there is no dataset, or arguments contradict each other.
    """

    def __init__(
        self,
        dataset: "Dataset | Sequence[Row] | None" = None,
        eval_dataset: "Dataset | Sequence[Row] | None" = None,
        system_prompt: str | None = None,
        few_shot: Sequence[Message] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: Literal["chat", "completion"] = "chat",
        oai_tools: list[dict[str, Any]] | None = None,
        env_id: str = "",
        **kwargs: Any,
    ) -> None:
        if dataset is None and eval_dataset is None:
            raise ConfigError("an environment needs a dataset", "dataset=[{'question': …}]")
        if message_type not in ("chat", "completion"):
            raise ConfigError(f"unknown message_type {message_type!r}", "'chat' or 'completion'")
        if message_type == "completion" and (system_prompt or few_shot or oai_tools):
            raise ConfigError(
                "message_type 'completion' has no system_prompt, few_shot or tools",
                "write them into the 'prompt' column",
            )
        self.dataset, self.eval_dataset = dataset, eval_dataset
        self.system_prompt, self.few_shot = system_prompt, list(few_shot or [])
        self.parser = parser if parser is not None else Parser()
        self.rubric = rubric if rubric is not None else Rubric(parser=self.parser)
        self.sampling_args: SamplingArgs = dict(sampling_args or {})
        self.message_type = message_type
        self.oai_tools = oai_tools
        self.env_id, self.version = env_id, ""
        self.env_args: dict[str, Any] = {}
        self._examples: dict[Split, list[Example]] = {}
        self._set_attributes(kwargs)

    @abstractmethod
    async def rollout(
        self, input: Row, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Play one example and return the state it ended in; errors propagate.

        Args:
            input: ``prompt``, ``answer``, ``task``, ``info`` and ``example_id`` of the example.
            client: answers ``chat.completions.create`` as an ``AsyncOpenAI`` does.
            model: name of the model at that client.
            sampling_args: arguments of every model call, such as ``temperature``.
        """

    def examples(self, split: Split, n: int = -1) -> list[Example]:
        """Return the first ``n`` examples of a split, or all.

        Raises:
            ConfigError: a row does not follow the column rules.
        """
        if split not in ("train", "eval"):
            raise ConfigError(f"unknown split {split!r}", "'train' or 'eval'")
        if split not in self._examples:
            form = RowFormat(self.system_prompt, tuple(self.few_shot), self.message_type)
            rows = enumerate(self._rows(split))
            self._examples[split] = [form.example(row, i) for i, row in rows]
        found = self._examples[split]
        # A list of the caller's own: what they do to it is not done to the next caller.
        return list(found if n < 0 else found[:n])

    def shots(self, task: str, count: int, examples: Sequence[Example]) -> list[Message]:
        """Return the first ``count`` examples of a task as worked questions and answers.

        Args:
            task: the task the examples must have.
            count: how many pairs of messages.
            examples: where they are taken from; nothing else should be played on these.

        Returns:
            ``2 * count`` messages: the last user message of a prompt, then its answer.

        Raises:
            ConfigError: there are fewer examples of the task.
        """
        chosen = [example for example in examples if example.task == task][: max(count, 0)]
        if len(chosen) < count:
            raise ConfigError(
                f"{count} worked examples of task {task!r} are wanted, there are {len(chosen)}",
                "lower synth.shots or give the environment more examples",
            )
        return [message for example in chosen for message in _worked(example)]

    def format_prompt(
        self,
        prompt_str: str,
        system_prompt: str | None = None,
        few_shot: Sequence[Message] | None = None,
    ) -> list[Message]:
        """Return a question as chat messages, behind a system prompt and few-shot messages."""
        form = RowFormat(system_prompt, tuple(few_shot or ()))
        return form.frame([{"role": "user", "content": prompt_str}])

    def get_dataset(self, n: int = -1, seed: int | None = None) -> "Dataset":
        """Return the training rows as a ``datasets.Dataset``, shuffled when a seed is given."""
        return self._table("train", n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> "Dataset":
        """Return the evaluation rows as a ``datasets.Dataset``, shuffled when a seed is given."""
        return self._table("eval", n, seed)

    async def get_model_response(
        self,
        state: State,
        prompt: Messages,
        client: Any = None,
        model: str | None = None,
        sampling_args: SamplingArgs | None = None,
    ) -> Any:
        """Ask the model for its next turn; client, model and arguments default to the state's.

        Returns:
            A ``ChatCompletion``, or a ``Completion`` with message_type "completion".

        Raises:
            EmptyResponseError: the answer carries no choice.
        """
        client = state["client"] if client is None else client
        model = state["model"] if model is None else model
        given = {**self.sampling_args, **(sampling_args or state.get("sampling_args") or {})}
        # With None, a rollout takes an argument of its environment's away.
        args = {name: value for name, value in given.items() if value is not None}
        if self.message_type == "completion":
            response = await client.completions.create(model=model, prompt=prompt, **args)
        else:
            if "max_tokens" in args:  # the chat endpoint's own name for it
                args.setdefault("max_completion_tokens", args.pop("max_tokens"))
            if self.oai_tools:
                args["tools"] = self.oai_tools
            response = await client.chat.completions.create(model=model, messages=prompt, **args)
        if not response.choices:
            raise EmptyResponseError(f"model {model!r} answered without a choice", "try again")
        return response

    async def run_cleanup(self, state: State) -> None:
        """Run the ``@cleanup`` hooks for a rollout; a failing one is logged, the others run."""
        await _run_all(cleanup.collect(self), state)

    async def run_teardown(self) -> None:
        """Run the ``@teardown`` hooks; a failing one is logged, the others still run."""
        await _run_all(teardown.collect(self))

    def _rows(self, split: Split) -> list[Row]:
        dataset, name = self.dataset, "dataset"
        if (split == "eval" and self.eval_dataset is not None) or dataset is None:
            dataset, name = self.eval_dataset, "eval_dataset"
        return read_rows(dataset, name)

    def _table(self, split: Split, n: int, seed: int | None) -> "Dataset":
        from datasets import Dataset

        rows = [
            {**row, "prompt": e.prompt, "answer": e.answer, "task": e.task, "info": e.info}
            | {"example_id": e.example_id}
            for row, e in zip(self._rows(split), self.examples(split), strict=True)
        ]
        if seed is not None:
            random.Random(seed).shuffle(rows)
        return Dataset.from_list(rows if n < 0 else rows[:n])

    def _set_attributes(self, kwargs: dict[str, Any]) -> None:
        # Upstream takes any keyword as an attribute, which hides typing errors: max_turn=3.
        inits = [vars(cls).get("__init__") for cls in type(self).__mro__[:-1]]
        known = {p for init in inits if init for p in inspect.signature(init).parameters}
        for name, value in kwargs.items():
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close or hasattr(type(self), name):
                advice = f"did you mean {close[0]!r}?" if close else "it is one of its methods"
                raise ConfigError(f"{type(self).__name__} takes no argument {name!r}", advice)
            setattr(self, name, value)


def _worked(example: Example) -> list[Message]:
    if isinstance(example.prompt, str):
        raise ConfigError("worked examples need chat prompts", "message_type='chat'")
    asked = [message for message in example.prompt if message.get("role") == "user"]
    if not asked:
        raise ConfigError(f"the prompt of example {example.example_id} has no user message")
    # The last one: messages before it may be worked examples of the environment's own.
    return [dict(asked[-1]), {"role": "assistant", "content": example.answer}]


async def _run_all(hooks: list[Any], *args: Any) -> None:
    for hook in hooks:
        try:
            await maybe_await(hook(*args))
        except Exception:
            logger.exception("%s failed", getattr(hook, "__qualname__", hook))
