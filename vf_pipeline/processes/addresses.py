"""Ports and addresses of this machine: one that is free, and whether somebody answers at one."""

import socket
import urllib.error
import urllib.request


def free_port() -> int:
    """Return a loopback TCP port that is free now."""
    with socket.socket() as probe:
        # Free from here until somebody takes it: a server that comes too late dies at its start,
        # and the wait for it says so.
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Return whether a server on this machine answers a GET with 200."""
    # No proxy: the addresses are this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
