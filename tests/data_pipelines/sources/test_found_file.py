from data_pipelines.sources.found_file import FoundFile


def test_an_address_with_a_protocol_is_not_of_this_machine():
    here = FoundFile(name="a.txt", address="/data/a.txt", num_bytes=1, changed="1")
    assert here.is_local
    assert not FoundFile(name="a.txt", address="s3://bucket/a.txt", num_bytes=1, changed="1").is_local
