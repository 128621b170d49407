import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, find_or_create, open_client


@pytest.mark.parametrize("uri", ["file:./mlruns", "mlruns", "redis://me:canary@h"])
def test_store_that_cannot_resume_is_refused_without_its_password(uri):
    with pytest.raises(ConfigurationError, match=r"logger.tracking_uri") as caught:
        check_uri(uri)
    assert "canary" not in str(caught.value)


@pytest.mark.slow
def test_run_is_created_once_and_then_found(root):
    store = Store(root, default_uri(root), "lmtrain")
    client = open_client(store)
    first = find_or_create(client, store, {"lmtrain.run": "u1"}, name="a")
    assert find_or_create(client, store, {"lmtrain.run": "u1"}, name="a") == first
    assert find_or_create(client, store, {"lmtrain.run": "u2"}, name="a") != first
    experiment = client.get_experiment_by_name("lmtrain")
    assert experiment is not None
    assert experiment.artifact_location == (root / "mlflow-artifacts").as_uri()
