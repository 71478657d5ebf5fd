"""What a model is: weights where they are served here, a name where an endpoint serves it."""

from tasks.prepare_data import model_of
from vf_pipeline.configs import PipelineConfig


def test_at_an_endpoint_a_model_is_its_name_there() -> None:
    def endpoint(url: str) -> PipelineConfig:
        return PipelineConfig.model_validate(
            {
                "inference": {"engine": "endpoint", "base_url": url},
                "model": {"name": "gpt-4.1-mini"},
            }
        )

    one, other = model_of(endpoint("http://a/v1")), model_of(endpoint("http://b/v1"))
    assert one.uri == "gpt-4.1-mini"
    assert one == model_of(endpoint("http://a/v1"))
    assert one.digest != other.digest
