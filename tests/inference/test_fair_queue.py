from lmtrain.inference.fair_queue import FairQueue
from lmtrain.inference.generation import Generation, Request


def test_clients_take_turns_whoever_came_with_many():
    queue = FairQueue()
    for client in "aaabca":
        queue.add(Generation(Request(prompt=[1], num_new_tokens=1, client=client), pieces=[]))
    assert "".join(each.request.client for each in queue) == "abcaaa"
    order = ""
    while len(queue):
        first = next(iter(queue))
        queue.take(first)
        order += first.request.client
    assert order == "abcaaa"
