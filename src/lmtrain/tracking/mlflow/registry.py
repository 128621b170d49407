"""An exported model in MLflow's registry: a version of a name, with its run, its checkpoint and its files.

Beside a database of one's own the version refers to the exported files where they are. A server may not see this disk:
it gets a copy, among the run's artifacts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.mlflow.client import open_client
from lmtrain.tracking.mlflow.sink import read_state
from lmtrain.tracking.mlflow.sync import sync, tracked_store
from lmtrain.tracking.redacting.redaction import redact_text
from lmtrain.tracking.status import read_status

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FORBIDDEN: Final = "/:"
EXPORTS: Final = "exports"


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A version of a name, and the place of its files."""

    name: str
    version: str
    source: str


class ModelRegistry:
    """The registry of a run's store; the run is brought up to date there at once, before anything is exported.

    Raises:
        ConfigurationError: A name that cannot be one, or a store that nobody here typed.
        EnvironmentProblem: The store does not answer.
    """

    def __init__(self, run_folder: Path, name: str, *, tracking_uri: str | None = None) -> None:
        if not name.strip() or any(sign in name for sign in FORBIDDEN):
            plain = "".join("-" if sign in FORBIDDEN else sign for sign in name.strip()) or "my-model"
            raise ConfigurationError(
                f"--register {name!r}: a model's name in MLflow is not empty and has no '/' and ':'; nearest valid: "
                f"{plain}."
            )
        self.name, self._folder = name, run_folder.absolute()
        self._store = tracked_store(run_folder, tracking_uri=tracking_uri)
        self._run_id = self._sent_run(tracking_uri)

    def register(self, exported: Path, *, step: int, form: str, facts: Mapping[str, object]) -> Registered:
        """Register an exported folder or file as the next version, with `facts` as its tags.

        Raises:
            EnvironmentProblem: The store does not answer; the export stays.
        """
        try:
            client = open_client(self._store)
            source = self._source(client, exported, step=step)
            self._make_name(client)
            tags = {"lmtrain.form": form, "lmtrain.folder": str(self._folder), "lmtrain.checkpoint": f"step_{step:08d}"}
            tags |= {f"lmtrain.{key}": str(value) for key, value in facts.items() if value is not None}
            version = client.create_model_version(
                self.name,
                source,
                run_id=self._run_id,
                tags=tags,
                description=f"step {step:,} of {self._folder.name}, exported as {form}",
            )
        except Exception as error:
            told = redact_text(str(error)).strip().splitlines()[:1]
            raise EnvironmentProblem(f"{exported} is written and not registered: {' '.join(told)}.") from error
        return Registered(name=self.name, version=str(version.version), source=source)

    def _sent_run(self, tracking_uri: str | None) -> str:
        """Return the run's id there; a run under way is sent by its own process."""
        status, state = read_status(self._folder), read_state(self._folder)
        if status is not None and status.status == "RUNNING" and state.run_id and state.phase == "sending":
            return state.run_id
        run_id = sync(self._folder, tracking_uri=tracking_uri).run_id
        assert run_id is not None
        return run_id

    def _source(self, client: "MlflowClient", exported: Path, *, step: int) -> str:
        """Return the address of the files, a copy of them among the run's artifacts where there is a server."""
        if self._store.artifacts_uri is not None:
            return exported.absolute().as_uri()
        from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository

        place, number = f"{EXPORTS}/step_{step:08d}/{exported.name}", 1
        while client.list_artifacts(self._run_id, place):
            number += 1
            place = f"{EXPORTS}/step_{step:08d}/{exported.name}-{number}"
        if exported.is_dir():
            client.log_artifacts(self._run_id, str(exported), place)
        else:
            client.log_artifact(self._run_id, str(exported), place)
        return RunsArtifactRepository.get_underlying_uri(f"runs:/{self._run_id}/{place}", self._store.tracking_uri)

    def _make_name(self, client: "MlflowClient") -> None:
        """Have the name in the registry; another process may have made it meanwhile."""
        from mlflow.exceptions import MlflowException

        try:
            client.create_registered_model(self.name)
        except MlflowException as known:
            if known.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
