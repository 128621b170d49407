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


def test_the_devices_that_a_plan_advises_are_the_fewest_on_which_its_shards_fit() -> None:
    model = ["model=llama_3_405b", "tokenizer=byte_level", "cluster=h100_8x", "batch.context_tokens=2048"]
    words = [*model, "batch.micro_batch_sequences=1", "recompute=every_block", "loss=chunked", "precision=bf16_mixed"]
    (whole,) = planned_runs([*words, "strategy=ddp", "batch.tokens_per_step=8388608"], program="lmtrain plan")
    advised = next(line for line in whole.advice.lines if line.startswith("fits on "))
    num_nodes, rest = divmod(int(advised.split()[2].replace(",", "")), 8)
    assert rest == 0

    def fits(nodes: int) -> bool | None:
        on = ["strategy=fsdp", f"cluster.num_nodes={nodes}", f"batch.tokens_per_step={2048 * 8 * nodes}"]
        (sharded,) = planned_runs([*words, *on], program="lmtrain plan")
        return sharded.plan.fits

    assert (fits(num_nodes - 1), fits(num_nodes)) == (False, True)
