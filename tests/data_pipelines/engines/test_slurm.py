import subprocess
import sys

import pytest

from data_pipelines import extras
from data_pipelines.engines.local import LocalEngine
from data_pipelines.engines.slurm import SCRIPT, SlurmEngine
from data_pipelines.stages.clean import LengthFilter, UnicodeRepair
from data_pipelines.stages.deduplicate import ExactDeduplication
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from tests.data_pipelines.corpus import NUM_PIECES, Planted

STAGES = [UnicodeRepair(), LengthFilter(), ExactDeduplication(num_tasks=3)]

# A queue that runs each array at once, where it is submitted, task after task, and forgets it.
SBATCH = """#!{python}
import os, subprocess, sys
script = sys.argv[-1]
text = open(script).read()
with open("{folder}/submitted", "a") as log:
    print(*sys.argv[1:-1], "|", *[line for line in text.splitlines() if "#SBATCH" in line], sep=" ", file=log)
with open("{folder}/last_" + text.split("--job-name=")[1].split()[0], "w") as copy:
    copy.write(text)
directives = dict(line[10:].partition("=")[::2] for line in text.splitlines() if line.startswith("#SBATCH --"))
first, _, last = directives["array"].split("%")[0].partition("-")
offset = next((word.split("RUN_OFFSET=")[1] for word in sys.argv if "RUN_OFFSET=" in word), "0")
if "merge_stats" not in text:
    for task in range(int(first), int(last) + 1):
        environment = {{**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "here", "RUN_OFFSET": offset}}
        subprocess.run(["bash", script], env=environment, stdout=open("{folder}/log", "a"), stderr=subprocess.STDOUT)
print("Submitted batch job", 4000 + len(open("{folder}/submitted").readlines()))
"""
LAUNCHER = "datatrove.tools.launch_pickled_pipeline"
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done
exec "$@"
"""


@pytest.fixture(autouse=True)
def extra():
    pytest.importorskip("datatrove.executor")
    pytest.importorskip("spacy")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put commands of SLURM's names on PATH that run everything here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    commands = {
        "sbatch": SBATCH.format(python=sys.executable, folder=tmp_path),
        "srun": SRUN,
        "squeue": "#!/bin/bash\nexit 1\n",
        "scontrol": "#!/bin/bash\necho here\n",
        "launch_pickled_pipeline": f'#!/bin/bash\nexec {sys.executable} -m {LAUNCHER} "$@"\n',
    }
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    return tmp_path


def engine(**settings):
    return SlurmEngine(**{"partition": "cpu", "poll_seconds": 0.01, "setup": "true", **settings})


def scripts(folder):
    return {path.parent.name: path.read_text() for path in sorted(folder.glob(f"*/jobs/*/{SCRIPT}"))}


def dry_run(folder, stages=STAGES, **settings):
    with pytest.raises(SystemExit) as stop:
        list(engine(dry_run=True, **settings)(Planted(), stages, folder=folder))
    assert stop.value.code == 0
    return scripts(folder)


def test_a_dry_run_writes_every_script_and_submits_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "check_output", lambda *_: pytest.fail("something was submitted"))
    written = dry_run(
        tmp_path, time_limit="1:00:00", max_running_tasks=4, memory_gib_per_cpu=3, sbatch={"account": "me"}, setup=None
    )
    assert list(written) == ["exact_duplicates", "exact_hashes", "read_and_clean"]
    text = written["read_and_clean"]
    for line in (
        "#SBATCH --partition=cpu",
        "#SBATCH --time=1:00:00",
        f"#SBATCH --array=0-{NUM_PIECES - 1}%4",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem-per-cpu=3G",
        "#SBATCH --account=me",
        "#SBATCH --job-name=lmtrain_read_and_clean",
    ):
        assert line in text.splitlines()
    (folder,) = tmp_path.iterdir()
    assert f"launch_pickled_pipeline {folder}/jobs/read_and_clean/executor.pik" in text
    assert str(sys.executable).rpartition("/")[0] in text
    assert "#SBATCH --array=0-2%4" in written["exact_duplicates"]
    said = capsys.readouterr().err
    assert "3 job arrays are written and nothing is submitted" in said
    assert f"{folder}/jobs/read_and_clean/{SCRIPT}" in said


def test_minhash_is_three_more_arrays(tmp_path):
    from data_pipelines.stages.minhash import MinHashDeduplication

    written = dry_run(tmp_path, [*STAGES, MinHashDeduplication(tasks_per_band=2)], num_tasks=3)
    assert len(written) == 6
    arrays = {name: text.split("--array=")[1].split()[0] for name, text in written.items()}
    assert arrays["minhash_signatures"] == "0-2"
    assert arrays["minhash_pairs"] == "0-27"
    assert arrays["minhash_clusters"] == "0-0"


@pytest.mark.slow
def test_on_a_queue_it_gives_what_the_local_engine_gives(slurm):
    expected = list(LocalEngine()(Planted(), STAGES, folder=slurm / "local"))
    assert list(engine(num_tasks=3)(Planted(), STAGES, folder=slurm / "a")) == expected
    submitted = [line for line in (slurm / "submitted").read_text().splitlines() if "RUN_OFFSET" in line]
    names = [line.split("job-name=")[1].split()[0] for line in submitted]
    assert names == ["lmtrain_read_and_clean", "lmtrain_exact_hashes", "lmtrain_exact_duplicates"]
    assert "--dependency" not in submitted[0]
    assert all("--dependency=afterok:40" in line for line in submitted[1:])
    again = list(engine(num_tasks=3)(Planted(), STAGES, folder=slurm / "a"))
    assert again == expected
    assert len((slurm / "submitted").read_text().splitlines()) == 6, "finished jobs are not submitted again"


@pytest.mark.slow
def test_a_dry_run_writes_what_is_submitted(slurm):
    written = dry_run(slurm / "dry", num_tasks=2)
    list(engine(num_tasks=2)(Planted(), STAGES, folder=slurm / "real"))
    for name, text in written.items():
        assert scripts(slurm / "real")[name] == text.replace(str(slurm / "dry"), str(slurm / "real"))


def test_tasks_that_fail_are_told_with_their_log(slurm):
    class Broken(Planted):
        def piece(self, index):
            raise OSError("gone")

    with pytest.raises(EnvironmentProblem, match=r"^2 of 2 tasks of read_and_clean did not finish.*same command again"):
        list(engine(num_tasks=2)(Broken(), STAGES, folder=slurm / "a"))


def test_a_refusal_of_sbatch_is_told(slurm):
    (slurm / "bin" / "sbatch").write_text("#!/bin/bash\nexit 3\n")
    with pytest.raises(ConfigurationError, match="sbatch refused read_and_clean with status 3"):
        list(engine()(Planted(), STAGES, folder=slurm / "a"))


def test_without_slurm_it_says_where_to_run_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"finds no sbatch here.*engine\.dry_run=true"):
        list(engine()(Planted(), STAGES, folder=tmp_path / "a"))


@pytest.mark.parametrize("name", ["num_tasks", "max_array_tasks", "cpus_per_task", "memory_gib_per_cpu"])
def test_numbers_that_are_not_positive_are_refused(name):
    with pytest.raises(ConfigurationError, match=rf"engine\.{name}=0 must be positive; nearest valid: 1"):
        engine(**{name: 0})


def test_without_the_extra_it_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"^engine=slurm needs datatrove, .*pip install .*'datatrove\["):
        engine()
