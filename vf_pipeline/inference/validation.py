"""What an answer must hold before an environment sees it.

The SDK builds its objects without validation: a proxy's HTML page arrives as a string, and a
missing field as a missing attribute. Here is where that ends.
"""

from typing import Any

from vf_pipeline.errors import EmptyResponseError, MalformedResponseError, ProviderError
from vf_pipeline.inference.diagnosis import quote


def check_choices(answer: Any, url: str, part: str) -> None:
    """Check that an answer has choices, and that each has its ``part`` ("message" or "text").

    Args:
        answer: what the SDK made of the server's answer.
        url: base URL of the server, for messages.
        part: the field of a choice that carries what was sampled.

    Raises:
        MalformedResponseError: the answer is no JSON object of the protocol.
        EmptyResponseError: there is no choice.
        ProviderError: the server wrapped an error into a successful answer.
    """
    check_object(answer, url)
    # Some gateways answer 200 and put what failed upstream into the body.
    error = getattr(answer, "error", None)
    choices = getattr(answer, "choices", None)
    if error and not choices:
        said = error.get("message", error) if isinstance(error, dict) else error
        raise ProviderError(f"{url} answered 200 with an error: {quote(str(said))}")
    # Left out: not this protocol. There but empty or null: nothing was sampled, and asking again
    # may help.
    if "choices" not in answer.model_fields_set:
        raise MalformedResponseError(
            f"{url} answered with an object that has no choices",
            "is this the URL of an OpenAI-compatible API?",
        )
    if not choices:
        raise EmptyResponseError(f"{url} answered without a choice", "ask again later")
    for choice in choices:
        if getattr(choice, part, None) is None:
            raise MalformedResponseError(f"{url} answered with a choice that has no {part}")


def check_object(answer: Any, url: str) -> None:
    """Check that an answer was a JSON object.

    Raises:
        MalformedResponseError: it was HTML, plain text, a list or null.
    """
    if isinstance(answer, str) or not hasattr(answer, "model_dump"):
        kind = "text" if isinstance(answer, str) else f"a JSON {type(answer).__name__}"
        raise MalformedResponseError(
            f"{url} answered with {kind} where a JSON object was due: {quote(str(answer))!r}",
            "is this the URL of an OpenAI-compatible API? It usually ends with /v1",
        )
