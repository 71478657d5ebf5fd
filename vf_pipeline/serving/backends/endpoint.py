"""A foreign server that already runs: asked whether it is there, never given weights."""

import logging
from pathlib import Path

from vf_pipeline.configs import InferenceSettings
from vf_pipeline.errors import ConfigError
from vf_pipeline.inference.control import list_models
from vf_pipeline.inference.endpoints import Endpoint
from vf_pipeline.types import ModelRef

logger = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 10.0


class EndpointBackend:
    """The server at ``inference.base_url``.

    Args:
        settings: its address, and the variable that holds its key.
        run_dir: folder of the run; nothing is written there.
    """

    def __init__(self, settings: InferenceSettings, run_dir: Path) -> None:
        self.settings = settings

    def start(self, model: ModelRef, threads: int) -> None:
        """Make sure that the server answers, and warn where it does not list the model.

        Raises:
            ConfigError: there is no address.
            ProviderError: the server cannot be reached, or refuses the key.
        """
        endpoint = self.endpoint(model)
        names = list_models(endpoint, _PROBE_TIMEOUT_S)
        # A warning, no error: servers may list none, or answer to names that they do not list.
        if names and model.uri not in names:
            logger.warning("%s lists %s, not %r", endpoint.base_url, names[:5], model.uri)

    def serves(self, model: ModelRef, threads: int) -> bool:
        """Return False: the server is not ours, and is asked anew for each model."""
        return False

    def endpoint(self, model: ModelRef) -> Endpoint:
        """Return the configured address, with the model's own name.

        Raises:
            ConfigError: there is no address.
        """
        if not self.settings.base_url:
            raise ConfigError(
                'inference.engine = "endpoint" needs an address', "set inference.base_url"
            )
        return Endpoint(self.settings.base_url, model.uri, self.settings.api_key_var)

    def stop(self) -> None:
        """Do nothing: others may use the server."""
