import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.pipelines.reader import read_pipeline, shows_config


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pipeline=speed_run", "pipeline=speed_run: there is no such option. Did you mean 'pipeline=speedrun'"),
        ("pipeline.preflight_steps=-1", r"preflight_steps=-1 is no number of steps; nearest valid: 2, or 0"),
        ("+pipeline.stages={../../x: {verb: train}}", r"stages\.\.\./\.\./x has a name of other characters"),
        ("pipeline.stages.base.verb=[train]", r"base\.verb=\['train'\] is no verb"),
        ("pipeline.stages.base.verb=trian", r"base\.verb=trian is no verb .* Did you mean 'train'\?"),
        ("pipeline.stages.talker.of=nope", r"talker\.of=nope is no earlier stage that trains; valid: base\."),
        ("pipeline.stages.base.words=a", r"words=a is no list; write 'pipeline\.stages\.base\.words=\[a\]'"),
        ("+pipeline.stages.base.wrods=[a]", "is no stage; it has verb, of, words"),
        (
            '+pipeline.stages.a="{verb: train, words: [seed=3]}"',
            r"Write '\+pipeline\.stages\.a=\{verb: train, words: ",
        ),
        ("budget.tokens=3", r"is of a training; write each\.budget\.tokens=3 for all of them, or for one base\.budget"),
        ("batch.context_tokens=3", r"write each\.batch\.context_tokens=3"),
        ("pipelin=speedrun_cpu", r"is of no stage; .* Did you mean 'pipeline'\?"),
        ("talkr.seed=3", r"is of no stage; .* Did you mean 'talker'\?"),
        ("--plan=1", r"^--plan=1: --plan has no value; write --plan\.$"),
        ("--plam", r"^--plam: there is no such flag\. Did you mean '--plan'\?$"),
        ("speedrun_cpu", r"^speedrun_cpu has no key; write pipeline=speedrun_cpu\.$"),
        ("speedrun_cpuu", r"^speedrun_cpuu is no pipeline; write lmtrain pipeline .*pipeline=speedrun_cpu\.$"),
        ("talker.run.name=x", r"talker\.run\.name=x is decided by the stage's place"),
        ("run.name=a/../b", "nearest valid: a/b"),
    ],
)
def test_what_is_no_pipeline_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_pipeline([word])


def test_a_composed_pipeline_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert not shows_config(["pipeline=speedrun_cpu", "base.seed=1"])
    assert shows_config(["pipeline=speedrun_cpu", "--cfg", "job"])
    assert "budget.tokens=2.2M" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match=r"before words of its stages; leave out base\.seed=1"):
        shows_config(["--cfg", "job", "base.seed=1"])


def test_a_typed_target_reaches_every_stage() -> None:
    read = read_pipeline(["pipeline=speedrun_cpu", "--allow-target=my_package."])
    assert read.allowed == ("my_package.",)
    assert all(read.command(stage)[-2:] == ["--allow-target", "my_package."] for stage in read.stages)
