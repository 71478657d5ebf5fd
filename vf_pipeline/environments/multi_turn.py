"""The loop of a rollout: the model's turn, then the environment's, until something stops it.

A rollout's life, by the methods that carry it on::

    init_state -> setup_state
                      |
                      v              a @stop method holds, or max_turns are played
       +--------> is_completed ------------------------------------------------+
       |              | no                                                     |
       |              v                      final_env_response is set         v
       |    get_prompt_messages (env_response) -------------------------> stop_reason
       |              |                                                        |
       |              v                                                        v
       |    get_model_response                                             @cleanup -> state
       |              |
       |              v
       +---- add_model_response

An error in any of them, and a rollout over ``timeout_seconds``, go by way of ``@cleanup`` as well,
and then to the caller: the runner makes a ``Failure`` of them.
"""

import asyncio
import copy
from abc import abstractmethod
from typing import Any

from vf_pipeline.environments.environment import Environment
from vf_pipeline.environments.hooks import maybe_await, stop
from vf_pipeline.environments.rows import Row
from vf_pipeline.errors import EnvironmentFault
from vf_pipeline.types import Message, Messages, SamplingArgs, State

MOST_TURNS = 1000
"""Turns after which a rollout ends even where ``max_turns`` sets no limit."""


class MultiTurnEnv(Environment):
    """Plays turns until a ``@stop`` method says so, or ``max_turns`` or a token limit is met.

    A subclass answers the model in ``env_response`` and may override ``setup_state``. Hooks may be
    coroutines or not. ``state`` holds ``prompt``, ``completion``, ``answer``, ``task``, ``info``,
    ``example_id``, ``input``, ``client``, ``model``, ``sampling_args``, ``responses``,
    ``trajectory`` (one step a turn), ``turn``, and in the end ``stop_reason``, ``stop_condition``.

    Args:
        max_turns: most turns of the model; -1 leaves it to the stop conditions.
        timeout_seconds: how long one rollout may take; None sets no limit of its own.
        **kwargs: those of ``Environment``.

    Example:
        >>> import asyncio
        >>> from dataclasses import asdict
        >>> import vf_pipeline as vf
        >>> class Guess(vf.MultiTurnEnv):
        ...     async def env_response(self, messages, state, **kwargs):
        ...         guess, number = int(messages[-1]["content"]), int(state["answer"])
        ...         if guess == number:
        ...             state["final_env_response"] = [{"role": "user", "content": "Right."}]
        ...         return [{"role": "user", "content": "More." if guess < number else "Less."}]
        >>> env = Guess(dataset=[{"question": "Guess my number.", "answer": "7"}], max_turns=5)
        >>> [example] = env.examples("eval")
        >>> client = vf.FakeClient(["5", "9", "7"])
        >>> state = asyncio.run(env.rollout(asdict(example), client, "fake"))
        >>> [message["content"] for message in state["completion"]]
        ['5', 'More.', '9', 'Less.', '7', 'Right.']
        >>> state["turn"], state["stop_reason"], state["stop_condition"]
        (3, 'environment', 'has_final_env_response')
    """

    def __init__(
        self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return the environment's answer to the conversation so far.

        Args:
            messages: prompt and completion, the model's last turn included.
            state: the rollout's state; setting ``final_env_response`` ends the rollout.
            **kwargs: for later additions.
        """

    async def setup_state(self, state: State, **kwargs: Any) -> State | None:
        """Prepare the state before the first turn, in place or by returning another one."""
        return state

    @stop(priority=100)
    async def response_truncated(self, state: State) -> bool:
        """Stop when a token limit cut the model's last turn."""
        return bool(state["stop_reason"] == "length")

    @stop(priority=50)
    async def has_final_env_response(self, state: State) -> bool:
        """Stop when the environment has said its last word."""
        return state.get("final_env_response") is not None

    @stop(priority=-100)
    async def max_turns_reached(self, state: State) -> bool:
        """Stop after ``max_turns`` turns; last, so that a better reason is named."""
        return bool(0 < self.max_turns <= state["turn"])

    async def rollout(
        self, input: Row, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Play one example; see ``Environment.rollout``.

        Raises:
            EnvironmentFault: the rollout took longer than ``timeout_seconds``.
        """
        state = self.init_state(input, client, model, sampling_args)
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                state = await maybe_await(self.setup_state(state)) or state
                for _ in range(self.max_turns if self.max_turns > 0 else MOST_TURNS):
                    if await maybe_await(self.is_completed(state)):
                        return self._ended(state)
                    prompt = await maybe_await(self.get_prompt_messages(state))
                    if state.get("final_env_response") is not None:
                        return self._ended(state, "has_final_env_response")
                    response = await self.get_model_response(state, prompt)
                    await maybe_await(self.add_model_response(state, prompt, response))
                done = await maybe_await(self.is_completed(state))
                return self._ended(state, None if done else "max_turns_reached")
        except TimeoutError as error:
            # A timeout of a tool or a request, inside: it is told as what it was.
            if not limit.expired():
                raise
            raise EnvironmentFault(
                f"a rollout of example {state['example_id']} took over {self.timeout_seconds} s",
                "raise timeout_seconds",
            ) from error
        finally:
            # Also when the runner cancels: what a rollout opened outside must not outlive it.
            await self.run_cleanup(state)

    def init_state(
        self, input: Row, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Return the state a rollout starts with; the prompt and the info are its own copies."""
        chat = self.message_type == "chat"
        return {
            "input": input,
            "prompt": copy.deepcopy(input["prompt"]),
            "completion": [] if chat else "",
            "answer": input.get("answer", ""),
            "task": input.get("task", "default"),
            "info": copy.deepcopy(input.get("info") or {}),
            "example_id": input.get("example_id", 0),
            "client": client,
            "model": model,
            "sampling_args": dict(sampling_args or {}),
            "responses": [],
            "trajectory": [],
            "turn": 0,
            "stop_reason": None,
            "stop_condition": None,
            "is_completed": False,
            "is_truncated": False,
        }

    async def is_completed(self, state: State, **kwargs: Any) -> bool:
        """Return whether a stop condition holds; the first one that does is kept in the state."""
        for condition in stop.collect(self):
            if await maybe_await(condition(state)):
                state["stop_condition"] = condition.__name__
                return True
        return False

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return what the model sees next; after its first turn the environment answers first."""
        if state["turn"]:
            messages = _joined(state["prompt"], state["completion"])
            answer = await maybe_await(self.env_response(messages, state))
            if isinstance(answer, tuple):  # the older form: (messages, state)
                answer = answer[0]
            final = state.get("final_env_response")
            answer = answer if final is None else final
            if isinstance(answer, str) and self.message_type == "chat":
                answer = [{"role": "user", "content": answer}] if answer else []
            state["completion"] = _joined(state["completion"], answer)
        return _joined(state["prompt"], state["completion"])

    async def add_model_response(self, state: State, prompt: Messages, response: Any) -> None:
        """Append the model's turn to the state."""
        choice = response.choices[0]
        chat = self.message_type == "chat"
        turn: Messages = [_assistant_message(choice.message)] if chat else choice.text
        truncated = choice.finish_reason == "length"
        state["completion"] = _joined(state["completion"], turn)
        state["responses"].append(response)
        state["trajectory"].append(
            {
                "prompt": prompt,
                "completion": turn,
                "response": response,
                "is_truncated": truncated,
                "extras": {},
            }
        )
        state["turn"] += 1
        if truncated:
            state["stop_reason"], state["is_truncated"] = "length", True
        elif state["stop_reason"] == "length":  # an override played on after a cut turn
            state["stop_reason"] = None

    def _ended(self, state: State, reason: str | None = None) -> State:
        """Return the state of a rollout that is over, with what stopped it."""
        state["stop_condition"] = reason or state["stop_condition"]
        state["is_completed"] = True
        state["stop_reason"] = self._stop_reason(state)
        return state

    def _stop_reason(self, state: State) -> str:
        """Return why the rollout ended; a reason that a hook wrote down stays."""
        if state["stop_reason"] is not None:
            return str(state["stop_reason"])
        if state["stop_condition"] != "max_turns_reached":
            return "environment"
        # With one turn to play, that the model ended it is the reason.
        return "stop" if self.max_turns == 1 else "max_turns"


def _joined(first: Messages, second: Messages) -> Messages:
    """Return one conversation after the other, in a new list; text is concatenated."""
    if isinstance(first, str):
        return first + (second if isinstance(second, str) else "")
    return [*first, *second]


def _assistant_message(message: Any) -> Message:
    out: Message = {"role": "assistant", "content": message.content or ""}
    if message.tool_calls:
        out["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    return out
