"""Advice: what to do about a finding of the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BOUNDARIES = "Look at these episodes below. If they are wrong, fix the ends in the source and convert again."
_METADATA = "Correct the metadata of the source, or ignore it: the data count."
_ENCODE = "Nothing, unless the frames look wrong in the viewer below."

#: Code -> what to do.
ADVICE: Mapping[str, str] = {
    "no-truncation-flag": "If episodes end by a time limit, say so: convert with --max-episode-steps, or add a column "
    "`truncated`. Otherwise value targets treat time limits as terminal states.",
    "no-end-flag": "If episodes end in terminal states, add a column `terminated`, which Q-learning needs, and convert "
    "again.",
    "unfinished-episode": "Nothing for sequence models. For Q-learning, leave the last episode out if its end matters.",
    "end-flag-inside": _BOUNDARIES,
    "both-flags": "Nothing, if a time limit and a terminal state can meet. Q-learning treats such ends as terminal.",
    "flags-disagree": _BOUNDARIES,
    "episode-crosses-files": "If each file numbers its episodes from 0, give the episodes numbers of their own.",
    "ends-by-length": "Check that the environment has this time limit. Compare the histogram of lengths.",
    "next-observation-differs": _BOUNDARIES,
    "steps-not-monotonic": "Sort the rows of each episode in the source, and convert again. If two episodes were "
    "joined, give --episode-column for each column that tells them apart.",
    "first-step-inside": "Give --episode-column for each column that tells the episodes apart, and convert again.",
    "run-changes": "Give --episode-column for each column that tells the episodes apart, and convert again.",
    "steps-gapped": "Find the missing steps in the source. A model sees a jump there.",
    "timestamps-irregular": "Check for dropped frames. A model takes all steps for equally long.",
    "observation-jump": "Look at the step in the viewer. If two rollouts were joined, cut the episode there, or leave "
    "it out with --where.",
    "one-step-episode": "Leave them out with --where 'length > 1', if they are resets or failures.",
    "duplicate-episode": "Leave the copies out. Training sees them more often, and validation may hold training data.",
    "episode-cut": "Get the file with the beginning of the episode, or keep the rest as an episode of its own.",
    "no-cursor": "Check that the first episode begins with a reset.",
    "ring-buffer": "Nothing for sequence models. The episodes at the seam are incomplete.",
    "position-assumed": "Check that the buffer was not full. A full one needs `pos` and `full`.",
    "missing-chunks": "Download the store again. Missing chunks are read as the fill value.",
    "bad-episode": "Repair the episode in the source, and convert again.",
    "gapped-episodes": "Check that no file is missing.",
    "files-left-out": "Convert the other files separately, if they belong to the data. Facts can be joined by episode.",
    "reset-step-left-out": "Nothing. The step was a reset, and its action had no effect.",
    "reset-row": "Nothing, if the source has dm_env's time steps. Give --reset-steps keep if each row is a step.",
    "reset-steps-possible": "Look at first steps in the viewer. Convert with --reset-steps drop if they are resets.",
    "journal-torn": "Nothing. The episode that its process did not finish is not in the dataset.",
    "journal-damaged": "Restore the journal from a backup, and convert it again, if these episodes are needed.",
    "empty-file": "Remove the file from the source, or download it again.",
    "non-finite": "A NaN in a batch makes the loss NaN. Find the cause in the source; leave the episodes out, or "
    "repair them.",
    "non-finite-final": "Leave these episodes out for Q-learning, or repair their final observations.",
    "metadata-disagrees": _METADATA,
    "declared-column-absent": _METADATA,
    "listed-episode-absent": "Download the missing files, and convert again.",
    "several-tasks": "Split the episodes by task in the source, if the policy is told the task.",
    "unknown-task": "Add the task's text to the source's metadata.",
    "replaced-column": "Rename the column in the source, if its values are needed.",
    "reserved-name": "Convert with --rename OLD=NEW, if the preset that the message names is used.",
    "no-actions-column": "Convert with --rename NAME=actions.",
    "index-left-out": "Nothing. If the index is needed, convert with --columns.",
    "missing-column": "Use the column's mask in the loss, or leave out the sources that lack the column.",
    "column-left-out": "Nothing, if the column is not needed. Otherwise give it one value a step in the source.",
    "null-column": "Nothing. The column has no values.",
    "fact-left-out": "Nothing, if the fact is not needed. Otherwise make it a number or a text in the source.",
    "final-left-out": "Nothing for sequence models. Q-learning then lacks the last next observation.",
    "reset-info-left-out": "Nothing.",
    "row-per-episode": "Nothing. The value is in the episode table.",
    "row-after-last-step": "Nothing. The row is the final observation.",
    "padding-left-out": "Nothing.",
    "rows-left-out": "Nothing.",
    "recordings-overlap": "Split train and validation by recording, or both hold the shared steps.",
    "sticky-actions": "Evaluate with sticky actions, too.",
    "clipped-rewards": "Do not compare returns with scores of the game.",
    "padding-not-zero": "Check with the writer of the dataset that the last row is padding.",
    "dtype-differs": "Nothing. The numbers are the same.",
    "next-observations-kept": "Name the observations with --rename NAME=observations, and convert again.",
    "images-kept-encoded": "Give the loader a decoder for the column, or convert with one size of images.",
    "paths-left-out": "Nothing.",
    "object-array-left-out": "Store the values as numbers or text, if they are needed. Pickles are never loaded.",
    "pickle-left-out": "Store the values as numbers or text, if they are needed. Pickles are never loaded.",
    "non-tensor-left-out": "Store the values as tensors, if they are needed. Pickles are never loaded.",
    "video-size-differs": _METADATA,
    "depth-as-rgb": "Do not use the camera as depth: 8 bits of RGB have lost it.",
    "video-codec-differs": _METADATA,
    "video-fps-differs": _METADATA,
    "video-frames-differ": "Compare the last frames with the last actions in the viewer. The camera may be shifted.",
    "long-gop": "Encode the videos again with more key frames, such as `ffmpeg -g 2`: random access is then faster.",
    "video-time-differs": _ENCODE,
    "video-statistics-left-out": "Run gear-data verify --decode to find the damaged frames. Of videos on the hub "
    "or in a bucket, only the indexes were read: gear-data convert reads the files.",
    "variable-frame-rate": "Compare frames and actions in the viewer. Encode again with a constant rate if they drift.",
}


def advice_for(finding: Mapping[str, Any]) -> str:
    """Returns what to do about a finding; empty for a code of another version."""
    return ADVICE.get(str(finding.get("code")), "")
