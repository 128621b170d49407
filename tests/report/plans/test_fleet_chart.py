"""The plot of simulated fleets."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from lmtrain.report.plans.simulation_page import fleet_chart
from tests.report.plans.test_fleet_simulation_page import FLEET


def test_each_strategy_has_a_line_and_a_point_is_open_where_its_fleet_does_not_fit() -> None:
    more = replace(FLEET, batch=replace(FLEET.batch, num_ranks=512), device_bytes=10**9)
    drawn = fleet_chart("llama", [FLEET, more, replace(FLEET, strategy="hsdp")])
    ET.fromstring(drawn)
    assert drawn.count("<polyline") == 2
    assert re.findall(r"<circle[^>]*fill=\"(\S+?)\"", drawn).count("none") == 1
    for words in ("fsdp", "hsdp", "llama: tokens/s per device over ranks", "512"):
        assert words in drawn
