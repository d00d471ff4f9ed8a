"""Tests of goals.py: expected values are from tables of the binomial distribution."""

import random
import unittest

from goals import median_interval, verdict


class MedianInterval(unittest.TestCase):

    def test_leaves_out_what_the_table_of_the_binomial_distribution_says(self):
        # The largest k with P(at most k heads in n throws) <= 0.005, from tables; the ends are the
        # k + 1st values from below and above.
        for n, k in ((8, 0), (11, 0), (12, 1), (15, 2), (20, 3), (25, 5), (45, 13), (2001, 942)):
            values = list(range(n))
            random.Random(n).shuffle(values)
            self.assertEqual(median_interval(values), ((n - 1) / 2, k, n - 1 - k))

    def test_holds_the_true_median_of_a_skewed_distribution(self):
        draw = random.Random(1)
        misses = 0
        for _ in range(2000):
            _, low, high = median_interval([draw.lognormvariate(0, 1) for _ in range(21)])
            misses += not low <= 1 <= high
        self.assertLess(misses, 40)  # 1 % is 20

    def test_asks_for_more_where_no_interval_is_sure(self):
        with self.assertRaisesRegex(ValueError, "7 values.*at least 8"):
            median_interval([1.0] * 7)


class Verdict(unittest.TestCase):

    def test_is_met_up_to_the_goal(self):
        self.assertEqual(verdict(0.85, 0.8, 0.9, 1.0), "met")
        self.assertEqual(verdict(1.0, 1.0, 1.0, 1.0), "met")

    def test_is_missed_above_the_goal_however_little(self):
        self.assertEqual(verdict(1.0015, 1.001, 1.002, 1.0), "missed")

    def test_is_at_the_goal_where_the_two_cannot_be_told_apart(self):
        self.assertEqual(verdict(1.0, 0.98, 1.02, 1.0), "at the goal")

    def test_is_unknown_where_the_median_alone_is_above(self):
        self.assertEqual(verdict(1.001, 0.98, 1.01, 1.0), "unknown")

    def test_is_unknown_where_noise_could_hide_a_miss(self):
        self.assertEqual(verdict(0.95, 0.9, 1.021, 1.0), "unknown")

    def test_scales_with_the_goal(self):
        self.assertEqual(verdict(0.05, 0.049, 0.0509, 0.05), "at the goal")
        self.assertEqual(verdict(0.05, 0.049, 0.0511, 0.05), "unknown")


if __name__ == "__main__":
    unittest.main()
