"""Asking again: how often, after which pause, and for how long altogether."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass

from vf_pipeline.inference.diagnosis import Diagnosis

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
    # Twice the client's default of 120 s for one answer.
    budget_s: float = 240.0

    def pause_s(self, retry: int, asked_s: float | None) -> float:
        """Return the pause before repetition ``retry`` (from 0), in seconds.

        Half of it is random, so that clients that failed together do not come back together; a
        pause that the server asked for is never shortened.
        """
        # The bound is on our own choice; what the server asks for may be longer.
        longest = min(self.max_backoff_s, self.backoff_s * 2.0**retry)
        return max(asked_s or 0.0, longest * random.uniform(0.5, 1.0))

    async def pause_or_raise(
        self, diagnosis: Diagnosis, cause: Exception, retry: int, deadline: float
    ) -> None:
        """Wait before the next repetition, where there may be one.

        Args:
            diagnosis: what the failed attempt means.
            cause: what it raised.
            retry: number of the repetition that would come, from 0.
            deadline: time.monotonic() at which the call's time is used up.

        Raises:
            ProviderError: the fault is permanent, or the retries or the time are used up.
        """
        error = diagnosis.error
        pause_s = self.pause_s(retry, diagnosis.retry_after_s)
        # Too long a pause is the end as well: no time would be left to ask in.
        last = retry >= self.max_retries or pause_s >= deadline - time.monotonic()
        if last or not diagnosis.retryable:
            if retry:
                error.message += f" (tried {retry + 1} times)"
            raise error from cause
        logger.warning("%s; retry %d in %.1f s", error.message, retry + 1, pause_s)
        await asyncio.sleep(pause_s)
