from lmtrain.tracking.parameters import readable_params

CONFIG = {
    "seed": 1,
    "model": {"_target_": "lmtrain.models.llama.Llama", "width": 64, "rope_base": 1e4},
    "optimizer": {"_target_": "lmtrain.optim.muon.muon", "lr": 0.1, "eps": 1e-8},
    "adapter": {"_target_": "lmtrain.adapters.lora.none"},
    "budget": {"_target_": "lmtrain.accounting.budgets.Budget", "steps": 5, "tokens": None},
    "run": {"name": "a"},
}


def test_params_are_the_parts_the_usual_numbers_the_typed_words_and_the_sizes() -> None:
    plan = {"parameters": {"total": 725568}, "horizon": {"steps": 5, "tokens": None}}
    assert readable_params(CONFIG, ["optimizer.eps=1e-8", "debug=tiny", "run.name=a", "+new.key=x"], plan) == {
        "model": "Llama",
        "model.width": "64",
        "optimizer": "muon",
        "optimizer.lr": "0.1",
        "optimizer.eps": "1e-08",
        "budget.steps": "5",
        "debug": "tiny",
        "new.key": "x",
        "seed": "1",
        "plan.parameters": "725568",
        "plan.steps": "5",
    }
