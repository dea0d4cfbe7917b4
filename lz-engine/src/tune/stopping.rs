//! When the order of some kernels is settled, and which are excluded: pure functions of their times.

/// A kernel this many times slower than the fastest cannot win; the time is better spent on distinguishing the others. Applied after the
/// minimum number of samples,
const SLOW_FACTOR: f64 = 1.5;
/// with this factor after two samples,
const VERY_SLOW_FACTOR: f64 = 4.0;
/// and with this factor after one.
const EXTREMELY_SLOW_FACTOR: f64 = 10.0;

/// The times of one kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Samples {
    times_ns: Vec<f64>,
}

impl<const COUNT: usize> From<[f64; COUNT]> for Samples {
    fn from(times_ns: [f64; COUNT]) -> Samples {
        Samples { times_ns: times_ns.into() }
    }
}

impl Samples {
    pub fn push(&mut self, ns: f64) {
        self.times_ns.push(ns);
    }

    pub fn len(&self) -> usize {
        self.times_ns.len()
    }

    fn mean(&self) -> f64 {
        self.times_ns.iter().sum::<f64>() / (self.times_ns.len().max(1)) as f64
    }

    /// InstalledCounts variance, as stored in the database.
    pub fn variance(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.times_ns.iter().map(|time| (time - mean).powi(2)).sum();
        squares / (self.times_ns.len().max(1)) as f64
    }

    /// The quantile, interpolated.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.times_ns.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        let (low, high) = ((last * share).floor(), (last * share).ceil());
        let at = |index: f64| sorted.get(index as usize).copied().unwrap_or_default();
        at(low) + (at(high) - at(low)) * (last * share - low)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Whether it can no longer win against a median of `fastest`.
    pub fn is_far_behind(&self, fastest: f64, min_samples: usize) -> bool {
        let median = self.median();
        median > EXTREMELY_SLOW_FACTOR * fastest
            || (self.len() >= 2 && median > VERY_SLOW_FACTOR * fastest)
            || (self.len() >= min_samples && median > SLOW_FACTOR * fastest)
    }

    /// The variance of the mean, for distinguishing two kernels: an outlier increases it and leaves the median unchanged.
    fn uncertainty(&self) -> f64 {
        let count = self.times_ns.len() as f64;
        if count < 2.0 { f64::INFINITY } else { self.variance() / (count - 1.0) }
    }
}

/// Whether neighbors in the order of medians, which decisions use, are further apart than chance explains.
pub(super) fn is_settled(all: &[&Samples], deviations: f64) -> bool {
    let mut ordered: Vec<&Samples> = all.to_vec();
    ordered.sort_by(|a, b| a.median().total_cmp(&b.median()));
    ordered.windows(2).all(|pair| match pair {
        [faster, slower] => {
            let apart = slower.median() - faster.median();
            apart > deviations * (faster.uncertainty() + slower.uncertainty()).sqrt()
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples(times: &[f64]) -> Samples {
        Samples { times_ns: times.to_vec() }
    }

    #[test]
    fn distant_samples_are_settled_and_overlapping_ones_are_not() {
        let (fast, slow) = (samples(&[10.0, 11.0, 10.0, 9.0]), samples(&[100.0, 101.0, 99.0, 100.0]));
        assert!(is_settled(&[&slow, &fast], 3.0));
        let near = samples(&[10.0, 10.0, 10.0, 11.0]);
        assert!(!is_settled(&[&fast, &near], 3.0));
        assert!(!is_settled(&[&samples(&[1.0]), &samples(&[100.0])], 3.0), "one sample proves nothing");
        assert!(is_settled(&[&fast], 3.0) && is_settled(&[], 3.0));
    }

    #[test]
    fn outlier_keeps_the_order_but_leaves_it_unsettled() {
        let fast = samples(&[10.0, 10.0, 10.0, 10.0, 90.0]);
        let slow = samples(&[20.0, 20.0, 20.0, 20.0, 20.0]);
        assert!(!is_settled(&[&fast, &slow], 3.0));
        assert!(fast.mean() > slow.mean() && fast.median() < slow.median());
    }

    #[test]
    fn slower_kernels_are_excluded_earlier() {
        let times = |ns: f64, count: usize| samples(&vec![ns; count]);
        let behind = |ns, count| times(ns, count).is_far_behind(100.0, 5);
        assert_eq!([1, 2, 4, 5].map(|count| behind(1100.0, count)), [true; 4]);
        assert_eq!([1, 2, 4, 5].map(|count| behind(500.0, count)), [false, true, true, true]);
        assert_eq!([1, 2, 4, 5].map(|count| behind(200.0, count)), [false, false, false, true]);
        assert!(!behind(140.0, 50));
        assert!(times(200.0, 1).is_far_behind(100.0, 1), "where one sample is all there will be");
    }

    #[test]
    fn known_statistics() {
        let one = samples(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((one.median(), one.quantile(1.0), one.quantile(0.0)), (2.5, 4.0, 1.0));
        assert_eq!(one.variance(), 1.25);
    }

    proptest! {
        #[test]
        fn settled_is_independent_of_list_order(
            lists in proptest::collection::vec(proptest::collection::vec(1.0..1e6f64, 2..9), 1..5),
        ) {
            let all: Vec<Samples> = lists.iter().map(|list| samples(list)).collect();
            let forwards: Vec<&Samples> = all.iter().collect();
            let backwards: Vec<&Samples> = all.iter().rev().collect();
            prop_assert_eq!(is_settled(&forwards, 3.0), is_settled(&backwards, 3.0));
        }
    }
}
