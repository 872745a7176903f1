"""The loader: batches of a dataset for training.

The way of a batch, from `next(iter(loader))` to the kernel:

- `sequence_loader` checks the arguments, and makes a `BatchIterator` for each pass.
- `batch_iterator`: `BatchIterator.__next__` takes the next batch, which a thread (`prefetch`) may have built ahead.
- `pace` chooses whether threads build batches ahead.
- `builders.cpu` (or `builders.device`): `build` samples windows, collects arrays, and makes tensors of them.
- `window_source`: `sample` asks the dataset's selector for the windows (`gear_data.selection`).
- `gear_data.collection.collector`: the `Collector` fills the arrays through a `ColumnReader`.
- `gear_data.residency.reader`: `ShardReader.read` calls the kernel `gear_data.kernels.cpu.collect.collect`.
- `builders.postprocess` decodes columns, and applies the preset's postprocessing, augmentations and `transform`.

Why: docs/explanation/decisions/linked-folders.md
"""
