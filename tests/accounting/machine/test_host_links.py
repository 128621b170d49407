from lmtrain.accounting.machine.hardware import DEVICES
from lmtrain.accounting.machine.host_links import HOST_LINKS


def test_links_are_of_devices_in_the_table():
    assert HOST_LINKS.keys() <= DEVICES.keys()
