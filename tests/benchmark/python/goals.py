"""Whether measured figures meet a goal, told apart from chance."""

import math
import statistics

FEWEST = 8  # values that say anything with this confidence


def median_interval(values):
    """The median, and the ends of the interval that holds the true one with 99 % confidence.

    Of order statistics, so it holds for any distribution of values that don't depend on each other:
    the chance that the true median is below the k-th smallest of n is that of fewer than k heads in
    n throws.
    """
    values, n = sorted(values), len(values)
    if n < FEWEST:
        raise ValueError(f"{n} values say too little: at least {FEWEST} are needed")
    left_out, ways = 0, 1 + n  # of n throws with at most left_out + 1 heads
    while 200 * ways <= 2**n:
        left_out += 1
        ways += math.comb(n, left_out + 1)
    return statistics.median(values), values[left_out], values[n - 1 - left_out]


def verdict(middle, low, high, goal):
    """What a median and its interval say about a goal, which is a most."""
    if high <= goal:
        return "met"
    if low > goal:
        return "missed"
    return "at the goal" if middle <= goal and high <= 1.02 * goal else "unknown"
