import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.launch.sbatch_flags import refuse_flags_of_sbatch, seconds_of_clock

KNOWN = ("--time", "--cpus-per-task", "--sbatch")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-p gpu", "-p gpu is sbatch's; write --sbatch=partition=gpu."),
        ("--partition=gpu seed=1", "--partition=gpu is sbatch's; write --sbatch=partition=gpu."),
        ("-t 24:00:00", "-t 24:00:00 is sbatch's; write --time=24:00:00."),
        ("--gres=gpu:h100:8", "--gres=gpu:h100:8 is sbatch's; write cluster.devices_per_node=8."),
        ("-N 4", "-N 4 is sbatch's; write cluster.num_nodes=4."),
        ("-N4", "-N4 is sbatch's; write cluster.num_nodes=4."),
        ("-pgpu", "-pgpu is sbatch's; write --sbatch=partition=gpu."),
        ("-t1:00:00", "-t1:00:00 is sbatch's; write --time=1:00:00."),
        ("--partiton gpu", "--partiton gpu (--partition) is sbatch's; write --sbatch=partition=gpu."),
        ("--nodez=2", "--nodez=2 (--nodes) is sbatch's; write cluster.num_nodes=2."),
        ("-J x", "-J x is sbatch's; write run.name=x."),
        ("--exclusive seed=1", "--exclusive is sbatch's; write --sbatch=exclusive."),
        ("--qos", "--qos is sbatch's; write --sbatch=qos=VALUE."),
        ("-o out.log", "-o out.log is sbatch's; lmtrain sets it, so leave it out."),
        ("--ntasks=16", "--ntasks=16 is sbatch's; cluster.num_nodes and cluster.devices_per_node say it."),
        (
            "-A me --mem=0 --requeue",
            "3 flags are sbatch's; write --sbatch=account=me --sbatch=mem=0.\n  -A me: --sbatch=account=me\n"
            "  --mem=0: --sbatch=mem=0\n  --requeue: lmtrain sets it, so leave it out",
        ),
    ],
)
def test_a_flag_of_sbatch_is_answered_by_the_word_here(words: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        refuse_flags_of_sbatch(words.split(), known=KNOWN)
    assert str(refused.value) == said


def test_flags_of_the_launch_and_of_a_printed_config_pass() -> None:
    refuse_flags_of_sbatch(["--time=24h", "--cpus-per-task", "8", "--cfg", "job", "-p", "cluster"], known=KNOWN)
    refuse_flags_of_sbatch(["--tme=24h", "-m", "--resolve"], known=KNOWN)  # nearest to one of its own, or to none
    refuse_flags_of_sbatch(["--mems=1"], known=KNOWN, is_other=lambda name: name == "mems")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24:00:00", 86_400), ("1-12", 129_600), ("2-00:30:15", 174_615), ("24h", None), ("90", None), ("30:00", None)],
)
def test_a_limit_as_sbatch_writes_it_is_read(text: str, seconds: int | None) -> None:
    assert seconds_of_clock(text) == seconds
