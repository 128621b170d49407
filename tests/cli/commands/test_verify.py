import pytest

from lmtrain.cli.main import main


def test_its_help_is_that_of_the_pipelines(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--help"])
    assert ended.value.code == 0
    assert "hold every byte against its manifest" in " ".join(capsys.readouterr().out.split())
