"""Advices that no row of the list follows, by reason. The list may only become shorter."""

NOT_FOLLOWED: dict[str, tuple[str, ...]] = {
    "Nothing to follow: the text says what there is, or is a part of a longer advice.": (
        "; train[:10%] takes a part, train+val takes both as one",
        "finished video files",
        "if the files are separate datasets, convert one at a time",
        "its splits: …",
        "its splits: …; parts of them: train[:10%], train[100:200], train+val",
        "only classes of tensorflow_datasets are allowed",
        "the dataset was converted from …",
    ),
    "It needs a worker that dies: tests/ingest/engine/test_tasks.py has one, and continues with --resume.": (
        "if it ran out of memory, use fewer workers (--jobs, jobs=); continue with --resume (resume=True)",
    ),
    "It needs a cluster of Ray in which a task dies.": ("repair the cluster and continue with --resume (resume=True)",),
    "It needs RAY_ADDRESS: tests/ingest/engine/test_ray_cluster.py has a wrong one.": (
        "set RAY_ADDRESS to the address of a running cluster, or leave it out for one on this machine",
    ),
    "A guard: no source of gear-data's own formats reaches it.": ("convert the column to one type and shape first",),
}
