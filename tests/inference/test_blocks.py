import random

from lmtrain.inference.blocks import BlockPool


def opened(pool, tokens):
    """Return the table of a text that is read to its end."""
    table = pool.open(tokens)
    pool.extend(table, len(tokens))
    pool.publish(table, tokens)
    return table


def test_a_known_prefix_is_shared_in_full_blocks_but_for_the_last_token():
    pool = BlockPool(10, block_tokens=2)
    first = opened(pool, [1, 2, 3, 4, 5])
    assert opened(pool, [1, 2, 3, 4, 9]).blocks[:2] == first.blocks[:2]
    assert pool.open([1, 2, 3, 4]).blocks == first.blocks[:1]  # token 4 is to be read, for what follows it
    assert pool.open([3, 4, 5]).blocks == []  # the same tokens, but not from a start
    assert pool.num_used == 4


def test_kept_prefixes_give_way_to_new_texts_the_longest_unused_first():
    pool = BlockPool(4, block_tokens=2)
    pool.close(opened(pool, [1, 2, 3, 4]))
    pool.close(opened(pool, [5, 6, 7, 8]))
    assert (pool.num_used, pool.num_kept) == (0, 4)
    pool.extend(pool.open([]), 2)
    assert pool.open([1, 2, 3, 4, 0]).num_shared == 1  # its second block gave way
    assert pool.open([5, 6, 7, 8, 0]).num_shared == 2


def test_no_block_is_ever_in_two_texts_unless_its_prefix_is():
    pool, source = BlockPool(64, block_tokens=3), random.Random(0)
    tables = []
    for _ in range(400):
        if tables and (source.random() < 0.5 or pool.num_used > 40):
            pool.close(tables.pop(source.randrange(len(tables)))[0])
        else:
            tokens = [source.randrange(2) for _ in range(source.randrange(1, 16))]
            tables.append((opened(pool, tokens), tokens))
        owners = {}
        for table, tokens in tables:
            for place, block in enumerate(table.blocks):
                piece = tuple(tokens[: (place + 1) * 3]), place
                assert owners.setdefault(block, piece) == piece
        assert pool.num_used == len(owners)
    for table, _ in tables:
        pool.close(table)
    assert pool.num_used == 0


def test_a_prefix_that_two_texts_read_at_once_is_kept_once():
    pool = BlockPool(8, block_tokens=2)
    tables = [pool.open([1, 2, 3]) for _ in range(2)]
    for table in tables:
        pool.extend(table, 3)
        pool.publish(table, [1, 2, 3])
    for table in tables:
        pool.close(table)
    assert pool.num_kept == 1


def test_blocks_given_back_early_are_given_back_once_and_found_by_their_prefix():
    pool = BlockPool(4, block_tokens=2)
    first, second = opened(pool, [1, 2, 3, 4, 5]), opened(pool, [1, 2, 3, 4, 9])
    pool.give_back(first, 2)
    assert pool.num_used == 4  # the second text has them still
    pool.give_back(second, 1)
    assert (pool.num_used, pool.num_kept) == (3, 1)
    pool.close(first)
    pool.close(second)
    assert (pool.num_used, pool.num_kept) == (0, 2)
    assert pool.open([1, 2, 3, 4, 0]).num_shared == 2
