"""lm-eval gets the same numbers from our model as from its model of transformers."""

import copy
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.evaluation.harness_model import HarnessModel
from lmtrain.evaluation.harness_tasks import find_tasks, read_scores, score_tasks
from lmtrain.interop.tokenizer_files import write_tokenizer
from lmtrain.run.stored_runs.loaded_models import model_to_run
from lmtrain.tokenizers.byte_level import ByteLevelTokenizer
from tests.evaluation.task_files import TASKS, write_tasks
from tests.interop.hugging_face import saved
from tests.serving.served import served

transformers_model: Any = HFLM  # pyright does not see through the harness's decorators
scored_there: Any = simple_evaluate
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Two plus two?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama that converses."""
    folder = tmp_path_factory.mktemp("llama")
    saved("llama", folder, tokenizer=False, max_position_embeddings=96)
    write_tokenizer(ByteLevelTokenizer(vocab_size=288, chat=True), folder, max_context_tokens=96)
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers_model(pretrained=str(folder), device="cpu", batch_size=1)  # padding moves their last digits


@pytest.fixture(scope="module")
def ours(folder):
    loaded = model_to_run(folder, device="cpu")
    return HarnessModel(loaded, batch_tokens=256)


@pytest.mark.parametrize("chat", [False, True])
def test_every_metric_is_the_one_of_the_harness_s_own_model(ours, theirs, tmp_path, chat):
    tasks = find_tasks(list(TASKS), folder=write_tasks(tmp_path / "tasks"), may_run_code=True)
    found = score_tasks(ours, list(TASKS), tasks, chat_template=chat, max_items=6)
    more = {"apply_chat_template": chat, "task_manager": tasks, "limit": 6, "log_samples": False}
    expected = list(read_scores(scored_there(theirs, tasks=list(TASKS), **more)))
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        assert (one.task, one.metric, one.num_items, one.num_shots) == (
            *(other.task, other.metric, 6),
            int(one.task == "next_choice"),
        )
        assert one.value == pytest.approx(other.value, rel=1e-5)
        assert one.standard_error == pytest.approx(other.standard_error)


def test_the_harness_scores_the_same_through_a_server(folder, ours, tmp_path):
    pytest.importorskip("tenacity")
    names = ["next_choice", "next_write"]
    tasks = find_tasks(names, folder=write_tasks(tmp_path / "tasks"), may_run_code=True)
    expected = {(one.task, one.metric): one.value for one in score_tasks(ours, names, tasks, max_items=4)}
    with served(model_to_run(folder, device="cpu")) as client:
        address = f"{client.base_url}/v1/completions"
        settings = {"base_url": address, "model": folder.name, "tokenizer": str(folder), "max_length": 96}
        more = {"task_manager": tasks, "limit": 4, "log_samples": False}
        found = scored_there("local-completions", model_args=settings, tasks=names, **more)
    assert {(one.task, one.metric): one.value for one in read_scores(found)} == pytest.approx(expected)


def test_an_empty_continuation_is_refused_as_by_the_harness_s_own_model(ours):
    with pytest.raises(DataError, match="continuation: must have at least one token"):
        ours.loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=("five", ""), idx=0)])


def test_every_answer_is_the_one_of_the_harness_s_own_model(ours, theirs):
    """Log-probabilities to 1e-4 nats of about 30, greedy flags and texts exactly, beyond the context too."""

    def asked(kind, *arguments):
        return [Instance(request_type=kind, doc={}, arguments=each, idx=i) for i, each in enumerate(arguments)]

    pairs = asked("loglikelihood", ("One two ", " three"), ("", "four"), ("five", ""), ("x" * 200, "yz"))[:2] + asked(
        "loglikelihood", ("x" * 200, "yz"), ("<|user_start|>a<|user_end|>", "b")
    )
    assert ours.tok_encode("<|user_start|>a") == theirs.tok_encode("<|user_start|>a")
    for (nats, greedy), (their_nats, their_greedy) in zip(
        ours.loglikelihood(pairs), theirs.loglikelihood(pairs, disable_tqdm=True), strict=True
    ):
        assert nats == pytest.approx(their_nats, abs=1e-4)
        assert greedy == their_greedy
    texts = asked("loglikelihood_rolling", ("a long text, " * 30,), ("b",))
    assert ours.loglikelihood_rolling(texts) == pytest.approx(theirs.loglikelihood_rolling(texts), rel=1e-5)
    settings = {"until": ["\n"], "max_gen_toks": 16}
    prompts = asked("generate_until", ("Once", settings), ("y" * 150, settings), ("in a", {**settings, "until": "q"}))
    assert ours.generate_until(copy.deepcopy(prompts)) == theirs.generate_until(prompts, disable_tqdm=True)


def test_a_conversation_is_the_text_of_the_template(ours, theirs):
    assert ours.apply_chat_template(CHAT) == theirs.apply_chat_template(CHAT)
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    assert ours.apply_chat_template(begun, add_generation_prompt=False) == theirs.apply_chat_template(
        begun, add_generation_prompt=False
    )


def test_wrong_settings_are_refused(ours):
    for settings, said in (
        ({"max_gen_toks": 96}, "max_gen_toks: .*below 96.*--num-new-tokens"),
        ({"num_beams": 4}, "generation setting num_beams"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            ours.generate_until([Instance(request_type="generate_until", doc={}, arguments=("a", settings), idx=0)])


def test_a_folder_of_tasks_needs_permission_as_its_files_can_run_code(tmp_path: Path) -> None:
    folder = write_tasks(tmp_path / "tasks")
    evil = f"import pathlib\npathlib.Path({str(tmp_path / 'touched')!r}).touch()\n"
    (folder / "evil.py").write_text(evil)
    (folder / "mine.yaml").write_text("task: mine\nprocess_docs: !function evil.attack\n")
    with pytest.raises(ConfigurationError, match=r"--task-folder.*--allow-task-code"):
        find_tasks(["mine"], folder=folder)
    assert not (tmp_path / "touched").exists()
