from lmtrain.inference.generation import Delta, Generation, Request, TokenScore
from lmtrain.serving.openai_answers import Writing, error, usage

PIECES = [bytes([byte]) for byte in range(256)]


def written(prompt, text):
    generation = Generation(Request(prompt=prompt, num_new_tokens=50), pieces=PIECES)
    for byte in text.encode():
        generation.add(byte, None, most_tokens=None)
    return generation


def test_a_prompt_counts_once_however_many_texts_go_on_from_it():
    prompt = [1, 2, 3]
    assert usage([written(prompt, "ab"), written(prompt, "c")])["prompt_tokens"] == 3
    assert usage([written([1], "ab"), written([1], "c")])["total_tokens"] == 5


def test_what_a_prompt_s_other_texts_find_of_it_was_computed_for_the_first():
    prompt = [*range(40)]
    texts = [written(prompt, "a") for _ in range(3)]
    for text, found in zip(texts, (0, 32, 32), strict=True):
        text.num_prefix_tokens = found
    assert usage(texts)["prompt_tokens_details"]["cached_tokens"] == 0
    texts[0].num_prefix_tokens = 16
    assert usage([*texts, written([1], "a")])["prompt_tokens_details"]["cached_tokens"] == 16


def test_half_a_character_is_told_by_its_bytes():
    writing = Writing(model="m", is_chat=True, pieces=PIECES)
    delta = Delta(written([1], ""), "", 0xC3, TokenScore(0xC3, -0.5, [(65, -1.0)]))
    (content,) = writing.chunk(0, delta)["choices"][0]["logprobs"]["content"]
    assert (content["bytes"], content["logprob"]) == ([0xC3], -0.5)
    assert content["top_logprobs"][0]["token"] == "A"


def test_a_completion_s_likeliest_tokens_are_told_apart():
    likeliest = [(0xC3, -0.5), (299, -0.7), (0xC4, -1.0), (298, -2.0), (65, -3.0)]
    writing = Writing(model="m", is_chat=False, pieces=PIECES)
    delta = Delta(written([1], ""), "", 0xC3, TokenScore(0xC3, -0.5, likeliest))
    told = writing.chunk(0, delta)["choices"][0]["logprobs"]
    assert told["tokens"] == [r"bytes:\xc3"]
    assert told["top_logprobs"] == [{r"bytes:\xc3": -0.5, "": -0.7, r"bytes:\xc4": -1.0, "A": -3.0}]


def test_both_forms_say_which_they_are():
    whole = [Writing(model="m", is_chat=is_chat, pieces=PIECES).whole([written([1], "a")]) for is_chat in (True, False)]
    assert [each["object"] for each in whole] == ["chat.completion", "text_completion"]
    assert [whole[0]["choices"][0]["message"]["content"], whole[1]["choices"][0]["text"]] == ["a", "a"]
    assert error("no")["error"]["message"] == "no"
