from lmtrain.training.transforms import ModelTransforms, unchanged, unsharded


def test_transforms_are_applied_in_one_order_each_to_what_the_one_before_made():
    def note(name):
        return lambda model, *mesh: [*model, (name, *mesh)]

    names = ("parallelize", "compile", "recompute", "precision", "start_from")
    applied = ModelTransforms(**{name: note(name) for name in names}).apply([], "mesh")
    assert applied == [("start_from",), ("precision",), ("recompute",), ("compile",), ("parallelize", "mesh")]


def test_off_is_the_model_itself():
    model = object()
    assert ModelTransforms().apply(model, None) is unchanged(model) is unsharded(model, None) is model
