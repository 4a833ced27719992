"""The last batch of an epoch under several processes."""

import pytest
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from lactchain.trainers.last_batch import share_out


def batches(num_rows, num_processes, **options):
    """The batches of each process, of row numbers."""
    loaders = [
        share_out(
            prepare_data_loader(
                DataLoader(range(num_rows), batch_size=4, collate_fn=list, **options),
                num_processes=num_processes,
                process_index=rank,
                put_on_device=False,
            )
        )
        for rank in range(num_processes)
    ]
    found = [list(loader) for loader in loaders]
    assert [len(loader) for loader in loaders] == [len(own) for own in found]
    return found


@pytest.mark.parametrize("num_processes", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [*range(3, 14), 43])
def test_each_row_comes_once_in_an_epoch_and_in_the_update_of_one_process(num_rows, num_processes):
    updates = [*zip(*batches(num_rows, num_processes), strict=True)]
    size = 4 * num_processes
    expected = [[*range(num_rows)][at : at + size] for at in range(0, num_rows, size)]
    if 1 <= len(expected[-1]) < num_processes:
        expected[-1] = sorted((expected[-1] * num_processes)[:num_processes])
    assert [sorted(sum(update, [])) for update in updates] == expected


def test_no_process_is_without_a_batch():
    assert batches(9, 2) == [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [8]]]


def test_what_is_left_over_is_left_out_where_that_is_asked_for():
    assert batches(11, 2, drop_last=True) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
