"""The sizes of CORE's 22 tasks in nanochat's bundle, for plans where the bundle is not there yet.

https://github.com/karpathy/nanochat: the lines of its files, and the choices of a question by its baseline.
"""

from typing import Final

CORE_SIZES: Final[dict[str, tuple[int, int]]] = {  # questions, rows of each
    "hellaswag_zeroshot": (10_042, 4),
    "jeopardy": (2_117, 1),
    "bigbench_qa_wikidata": (20_321, 1),
    "arc_easy": (2_376, 4),
    "arc_challenge": (1_172, 4),
    "copa": (100, 2),
    "commonsense_qa": (1_221, 5),
    "piqa": (1_838, 2),
    "openbook_qa": (500, 4),
    "lambada_openai": (5_153, 1),
    "hellaswag": (10_042, 4),
    "winograd": (273, 2),
    "winogrande": (1_267, 2),
    "bigbench_dyck_languages": (1_000, 1),
    "agi_eval_lsat_ar": (230, 5),
    "bigbench_cs_algorithms": (1_320, 1),
    "bigbench_operators": (210, 1),
    "bigbench_repeat_copy_logic": (32, 1),
    "squad": (10_570, 1),
    "coqa": (7_983, 1),
    "boolq": (3_270, 2),
    "bigbench_language_identification": (10_000, 11),
}
