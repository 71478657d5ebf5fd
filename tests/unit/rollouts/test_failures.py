"""The error that many failed rollouts amount to."""

from vf_pipeline.errors import OverlongPromptError, ProviderError
from vf_pipeline.rollouts.failures import error_for
from vf_pipeline.types import Failure

OVERLONG = Failure("provider", "OverlongPromptError", "512 tokens at most")
BROKEN = Failure("provider", "ProviderError", "503")


def test_prompts_that_do_not_fit_are_an_error_of_their_own() -> None:
    error = error_for([OVERLONG, OVERLONG], "2 of 2 rollouts failed", "shorten it")
    assert isinstance(error, OverlongPromptError)
    assert str(error) == "2 of 2 rollouts failed; most often: 512 tokens at most (shorten it)"
    assert type(error_for([OVERLONG, OVERLONG, BROKEN], "3 failed", "")) is ProviderError
