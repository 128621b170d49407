from lmtrain.composition.command_line.called_elsewhere import CALLED_OPTIONS
from lmtrain.composition.command_line.paths import conf_folder


def test_what_others_call_an_option_is_none_of_ours_and_leads_to_one() -> None:
    for group, called in CALLED_OPTIONS.items():
        ours = {path.stem for path in (conf_folder() / group).glob("*.yaml")}
        assert not ours & {*called}
        assert {name for names in called.values() for name in names} <= ours
