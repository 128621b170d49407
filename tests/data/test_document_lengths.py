from lmtrain.data.document_lengths import document_lengths
from lmtrain.data.shards import open_dataset
from lmtrain.data.synthetic import DOCUMENT_TOKENS, synthetic


def test_documents_are_counted_by_their_length(tmp_path):
    dataset = open_dataset(synthetic(root=str(tmp_path), num_tokens=10_240))
    assert document_lengths(dataset) == {DOCUMENT_TOKENS: 10_240 // DOCUMENT_TOKENS}
    assert sum(n * count for n, count in document_lengths(dataset, "test").items()) == dataset.split("test").num_tokens
