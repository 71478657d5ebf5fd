"""Errors in OpenAI's form."""

from typing import Any


class ApiError(Exception):
    """An error that the client is told, in OpenAI's form."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}
