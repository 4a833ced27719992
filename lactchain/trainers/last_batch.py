"""The last batch of an epoch under several processes: its rows, none of them twice."""

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DataLoader


class SharedOut(BatchSampler):
    """Batches of a sampler in updates of `num_processes`; what is left over is spread among them.

    accelerate fills the last update up with rows of the epoch's beginning, which count twice then.
    Losses here are means over an update, so batches of an update may differ in size. No process may
    be without one: of fewer rows than processes some come more than once.
    """

    def __init__(self, batches: BatchSampler, num_processes: int) -> None:
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.num_processes = num_processes

    def __len__(self) -> int:
        whole, left = divmod(super().__len__(), self.num_processes)
        return self.num_processes * (whole + (left > 0 and not self.drop_last))

    def __iter__(self) -> Iterator[list[int]]:
        update: list[list[int]] = []
        for batch in super().__iter__():
            update.append(batch)
            if len(update) == self.num_processes:
                yield from update
                update = []
        rows, count = sum(update, []), self.num_processes
        if rows and not self.drop_last:
            yield from (rows[rank::count] or [rows[rank % len(rows)]] for rank in range(count))


def share_out(loader: DataLoader) -> DataLoader:
    """The loader that accelerate has prepared for training, with each row once an epoch."""
    shard = loader.batch_sampler
    count = getattr(shard, "num_processes", 1)
    if count > 1 and not shard.split_batches:
        shard.batch_sampler, shard.even_batches = SharedOut(shard.batch_sampler, count), False
    return loader
