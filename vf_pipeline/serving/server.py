"""The server process: takes its address, loads the model, serves until it is told to end.

Loopback only, unless VF_SERVE_API_KEY holds a key that clients must send.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

from aiohttp import web

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.scheduler import Engine
from vf_pipeline.serving.http.access import is_loopback
from vf_pipeline.serving.http.routes import Routes, ServerSettings
from vf_pipeline.tokens.tokenizer import ChatTokenizer

API_KEY_VAR = "VF_SERVE_API_KEY"
# Longer than clients keep an idle connection (openai's: 5 s): a server that closes first breaks the
# request that is on its way.
_KEEPALIVE_S = 600.0


def serve(settings: ServerSettings) -> None:
    """Load a model and serve it until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: the model cannot be served, the address is taken, or it is not loopback and
            VF_SERVE_API_KEY is not set.
    """
    api_key = os.environ.get(API_KEY_VAR, "")
    if not api_key and not is_loopback(settings.host):
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines, and there is no key",
            f"set {API_KEY_VAR}, or serve on 127.0.0.1",
        )
    started = time.monotonic()
    with _bind(settings.host, settings.port) as listener:
        tokenizer = _load_tokenizer(Path(settings.model_dir))
        engine = Engine(
            settings.model_dir,
            settings.limits,
            decode=tokenizer.decoder(),
            eos_ids=sorted(tokenizer.eos_ids),
            weight_version=settings.weight_version,
        )
        # Its thread before the event loop: the first request finds an engine that is alive.
        engine.start()
        try:
            app = Routes(engine, tokenizer, settings).app(api_key)
            asyncio.run(_run(app, listener, settings, started))
        finally:
            engine.stop()


def _load_tokenizer(folder: Path) -> ChatTokenizer:
    # Asked first: "no tokenizer" would mislead where there is no model at all.
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no model in {folder}: config.json is missing", "give a model folder")
    return ChatTokenizer.load(folder)


async def _run(
    app: web.Application, listener: socket.socket, settings: ServerSettings, started: float
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only an event: cleanup() below ends what runs, whatever it is at.
        loop.add_signal_handler(number, stopped.set)
    runner = web.AppRunner(
        app,
        # Off in aiohttp by default: a client that went away would be sampled for to the end.
        handler_cancellation=True,
        access_log=None,
        # Not aiohttp's 60 s: who started us kills us after 20 (processes/managed.py).
        shutdown_timeout=1.0,
        keepalive_timeout=_KEEPALIVE_S,
    )
    await runner.setup()
    try:
        # A whole batch of rollouts connects at once; aiohttp's 128 would make the rest try again.
        # Only now is the socket listening: until the model is loaded, connections are refused.
        await web.SockSite(runner, listener, backlog=1024).start()
        port = listener.getsockname()[1]
        weights = f", weights {settings.weight_version}" if settings.weight_version else ""
        sys.stderr.write(
            f"vf-serve: ready at http://{settings.host}:{port}/v1, model {settings.served_name}"
            f"{weights} (loaded in {time.monotonic() - started:.1f} s)\n"
        )
        sys.stderr.flush()
        await stopped.wait()
    finally:
        await runner.cleanup()


def _bind(host: str, port: int) -> socket.socket:
    """Take the address before the model is loaded, so that a taken one is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # A server started again must not wait for its predecessor's connections to time out.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port"
        ) from error
    return listener
