"""Advices that no row of the list follows, by reason. The list may only become shorter."""

NOT_FOLLOWED: dict[str, tuple[str, ...]] = {
    "Nothing to follow: the text says what there is, or is a part of a longer advice.": (
        "; train[:10%] takes a part, train+val takes both as one",
        "finished video files",
        "if the files are separate datasets, convert one at a time",
        "its splits: …",
        "its splits: …; parts of them: train[:10%], train[100:200], train+val",
        "meta/gear_data.json",
        "only classes of tensorflow_datasets are allowed",
        "the dataset was converted from …",
    ),
    "It needs a fault of the machine: a process that ends, a file that another process changes.": (
        "check its permissions",
        "convert again with --overwrite (overwrite=True)",
        "do not change the source while it is read",
        "if it ran out of memory, use fewer workers (--jobs, jobs=); continue with --resume (resume=True)",
        "repair the cluster and continue with --resume (resume=True)",
    ),
    "It needs video files.": (
        "convert both with --videos frames --video-size (videos=VideoStorage(mode='frames', size=...)), or leave the camera out with --columns",  # noqa: E501
        "give one video for each episode, or put the number of the episode into the videos' names",
        "keep one of the two files",
        "leave the camera out with --columns, or convert the sources separately",
        "repair the source, or leave --video-column out",
        "restore the file, leave such episodes out with --on-bad-episode skip, or leave the camera out with --columns",
        "restore the original file, or convert the source again",
    ),
    "A guard: no source of gear-data's own formats reaches it.": ("convert the column to one type and shape first",),
}
