"""Tasks of the harness's own format, of local data: choices with examples, writing, and whole texts."""

import json
from pathlib import Path

ROWS = [{"q": f"What follows {i}?", "choices": [str(i + 1), f"not {i}", "x"], "answer": i % 3} for i in range(10)]
COMMON = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
fewshot_split: test
doc_to_target: "{{{{answer}}}}"
doc_to_text: "{{{{q}}}}"
"""
TASKS = {
    "next_choice": 'output_type: multiple_choice\nnum_fewshot: 1\ndoc_to_choice: "{{choices}}"\n'
    "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "next_write": "output_type: generate_until\ngeneration_kwargs: {until: [e, Q], max_gen_toks: 12}\n"
    "metric_list: [{metric: exact_match}]\n",
    "next_text": 'output_type: loglikelihood_rolling\ndoc_to_target: "{{q}} {{choices[0]}}"\n'
    "metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]\n",
}


def write_tasks(folder: Path) -> Path:
    """Write the tasks and their data."""
    folder.mkdir()
    data = folder / "next.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, more in TASKS.items():
        lines = [line for line in COMMON.format(data=data).splitlines() if line.split(":")[0] not in more]
        (folder / f"{name}.yaml").write_text("\n".join([f"task: {name}", *lines, more]))
    return folder
