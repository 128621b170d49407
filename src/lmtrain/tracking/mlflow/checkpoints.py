"""A run's checkpoints as logged models of MLflow, by reference: a name, a folder, and the metrics to rank them by.

No file is copied. A model whose checkpoint was removed from the run's folder is deleted there too.
"""

from pathlib import Path
from typing import Any

from mlflow.entities import LoggedModelOutput
from mlflow.tracking import MlflowClient

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, VALIDATION_LOSS
from lmtrain.storage import foreign_json
from lmtrain.storage.hashed_folder import MANIFEST
from lmtrain.tracking.flat_config import tracking_key

FOLDER_TAG = "lmtrain.checkpoint"
MODEL_TYPE = "lmtrain checkpoint"
RANKED_BY = (BITS_PER_BYTE, VALIDATION_LOSS)


class MlflowCheckpoints:
    """The checkpoints of one run there; a call can be repeated."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._experiment = client.get_run(run_id).info.experiment_id
        self._models: dict[str, str] | None = None  # ids by checkpoint name
        self._tried: set[str] = set()

    def send(self, folder: Path, *, newest_step: int) -> None:
        """Make the store's models those of a folder's checkpoints; points up to `newest_step` are in the store."""
        present = {path.parent.name: path for path in sorted(folder.glob(f"step_*/{MANIFEST}"))}
        if self._models is None:
            if not present:
                return
            self._models = self._stored()
        for name, path in present.items():
            if name not in self._models and (facts := _facts(path)):
                self._models[name] = self._create(name, path.parent, facts)
        for name in [name for name in self._models if name not in present]:
            self._client.delete_logged_model(self._models.pop(name))
        for name in [name for name in self._models if name not in self._tried]:
            facts = _facts(present[name])
            if facts and int(facts["step"]) <= newest_step:
                self._rank(self._models[name], int(facts["step"]), facts.get("metrics", {}))
                self._tried.add(name)

    def try_again(self) -> None:
        """Rank the models again whose points were not in the store."""
        self._tried.clear()

    def _stored(self) -> dict[str, str]:
        text = f"source_run_id = '{self._run_id}'"
        found = self._client.search_logged_models([self._experiment], filter_string=text)
        return {str(model.name): str(model.model_id) for model in found}

    def _create(self, name: str, folder: Path, facts: dict[str, Any]) -> str:
        model = self._client.create_logged_model(
            self._experiment,
            name=name,
            source_run_id=self._run_id,
            tags={FOLDER_TAG: str(folder)},
            params={"step": str(facts["step"]), "tokens": str(facts["tokens"])},
            model_type=MODEL_TYPE,
        )
        model_id = str(model.model_id)
        self._client.log_outputs(self._run_id, [LoggedModelOutput(model_id, step=int(facts["step"]))])
        self._client.finalize_logged_model(model_id, "READY")
        return model_id

    def _rank(self, model_id: str, step: int, metrics: dict[str, float]) -> None:
        """Give a model its metrics: points that the run has already, with their own times, so that none is doubled."""
        for key in (tracking_key(key) for key in RANKED_BY if key in metrics):
            points = [each for each in self._client.get_metric_history(self._run_id, key) if each.step == step]
            for point in points[:1]:
                self._client.log_metric(self._run_id, key, point.value, point.timestamp, step, model_id=model_id)


def _facts(manifest: Path) -> dict[str, Any] | None:
    """Return a checkpoint's facts, None while or where it cannot be read."""
    try:
        facts = foreign_json.read(manifest)
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "step" in facts and "tokens" in facts else None
