from lmtrain.run.schema.parameters import hints_of, parameters_of


class Late:
    """Has an annotation in quotes."""

    def __init__(self, *, width: "int" = 8) -> None:
        self.width = width


def test_parameters_and_types_are_those_of_the_constructor_and_read_once():
    assert parameters_of(Late)["width"].annotation == "int"
    assert parameters_of(Late, are_evaluated=True)["width"].annotation is int
    assert hints_of(Late)["width"] is int
    assert parameters_of(Late) is parameters_of(Late)
