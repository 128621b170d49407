from lmtrain.composition.planning.plan import planned_runs

WORDS = ["model=llama_3_8b", "cluster=h100_8x", "precision=bf16_mixed", "strategy=fsdp", "budget.tokens=1B"]


def test_a_sweep_plans_each_of_its_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = planned_runs(["-m", *WORDS, "batch.tokens_per_step=16384,32768"], program="lmtrain plan")
    assert [run.plan.batch.tokens_per_step for run in found] == [16_384, 32_768]
    assert {run.title for run in found} == {"llama_3_8b"}
    for run in found:
        assert run.plan.memory is not None
        assert run.to_json()["ok"] is run.advice.is_possible
