from __future__ import annotations

from gear_data.video.decoding.decoder import Picture
from gear_data.video.decoding.frame_cache import FrameCache


def picture(pts: int, size: int = 10) -> Picture:
    return Picture(pts, None, 1, 1, size)


def kept(cache: FrameCache) -> list[int]:
    return [key for key in range(10) if key in cache]


def test_the_frame_used_longest_ago_leaves_first() -> None:
    cache = FrameCache()
    for number in range(3):
        cache.put(number, picture(number), 30, expected=False)
    assert cache.get(0) == picture(0)
    cache.put(3, picture(3), 30, expected=False)
    assert kept(cache) == [0, 2, 3]
    assert cache.bytes == 30


def test_expected_frames_stay_longer_than_others() -> None:
    cache = FrameCache()
    cache.put(0, picture(0), 30, expected=True)
    for number in range(1, 6):
        cache.put(number, picture(number), 30, expected=False)
    assert kept(cache) == [0, 4, 5]
    # Nobody expects frame 0 any more, so it becomes an ordinary frame.
    cache.get(0)
    cache.put(6, picture(6), 30, expected=False)
    cache.put(7, picture(7), 30, expected=False)
    assert kept(cache) == [0, 6, 7]
    cache.get(6, expected=True)
    cache.put(8, picture(8), 20, expected=False)
    assert kept(cache) == [6, 8]


def test_a_frame_above_the_limit_is_not_kept() -> None:
    cache = FrameCache()
    cache.put(0, picture(0), 30, expected=False)
    cache.put(1, picture(1, 31), 30, expected=True)
    assert kept(cache) == [0]
    cache.put(1, picture(1, 30), 30, expected=True)
    assert kept(cache) == [1]


def test_a_frame_that_is_added_twice_counts_once() -> None:
    cache = FrameCache()
    cache.put(0, picture(0), 30, expected=False)
    cache.put(0, picture(0, 20), 30, expected=True)
    assert cache.bytes == 20
    assert cache.get(0) == picture(0, 20)
    assert cache.get(1) is None
