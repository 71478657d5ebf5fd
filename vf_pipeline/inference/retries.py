"""Asking again: how often, after which pause, and for how long altogether."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from vf_pipeline.inference.diagnosis import Diagnosis

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a failed request is repeated.

    Args:
        max_retries: repetitions after the first attempt.
        backoff_s: pause before the first repetition, in seconds; it doubles each time.
        max_backoff_s: longest pause that we choose ourselves, in seconds.
        budget_s: how long one call may take, with all its attempts and pauses, in seconds.
    """

    max_retries: int = 4
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    budget_s: float = 240.0

    def pause_s(self, retry: int, asked_s: float | None) -> float:
        """Return the pause before repetition ``retry`` (from 0), in seconds.

        Half of it is random, so that clients that failed together do not come back together; a
        pause that the server asked for is never shortened.
        """
        longest = min(self.max_backoff_s, self.backoff_s * 2.0**retry)
        return max(asked_s or 0.0, longest * random.uniform(0.5, 1.0))


async def call_with_retries(
    attempt: Callable[[float], Awaitable[T]],
    diagnose: Callable[[Exception, float], Diagnosis],
    policy: RetryPolicy,
    timeout_s: float,
) -> T:
    """Return what ``attempt`` returns, repeating it while its errors are passing ones.

    Args:
        attempt: one try; gets the seconds that it may take.
        diagnose: what an exception means; gets the seconds that were allowed.
        policy: how often, and how long altogether.
        timeout_s: longest duration of one attempt, in seconds.

    Raises:
        ProviderError: the error is permanent, or the retries or the time are used up.
    """
    deadline = time.monotonic() + policy.budget_s
    retry = 0
    while True:
        allowed_s = min(timeout_s, max(deadline - time.monotonic(), 0.001))
        try:
            return await attempt(allowed_s)
        except Exception as error:
            found, cause = diagnose(error, allowed_s), error
        pause_s = policy.pause_s(retry, found.retry_after_s)
        last = retry >= policy.max_retries or pause_s >= deadline - time.monotonic()
        if last or not found.retryable:
            if retry:
                found.error.message += f" (tried {retry + 1} times)"
            raise found.error from cause
        retry += 1
        logger.warning("%s; retry %d in %.1f s", found.error.message, retry, pause_s)
        await asyncio.sleep(pause_s)
