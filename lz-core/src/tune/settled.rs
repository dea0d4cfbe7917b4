//! When the order of some kernels is settled: a pure function of their times.

/// The times of one kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Samples {
    times_ns: Vec<f64>,
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

    /// Of the population, as the database keeps it.
    pub fn variance(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.times_ns.iter().map(|time| (time - mean).powi(2)).sum();
        squares / (self.times_ns.len().max(1)) as f64
    }

    /// The time that a share of the runs stays below.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.times_ns.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        let (low, high) = ((last * share).floor(), (last * share).ceil());
        let at = |place: f64| sorted.get(place as usize).copied().unwrap_or_default();
        at(low) + (at(high) - at(low)) * (last * share - low)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The variance of the mean, by which two means are told apart.
    fn uncertainty(&self) -> f64 {
        let count = self.times_ns.len() as f64;
        if count < 2.0 { f64::INFINITY } else { self.variance() / (count - 1.0) }
    }
}

/// Whether neighbours in the order of their means are further apart than chance explains, for every pair of neighbours.
pub(super) fn is_settled(all: &[&Samples], deviations: f64) -> bool {
    let mut ordered: Vec<&Samples> = all.to_vec();
    ordered.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
    ordered.windows(2).all(|pair| match pair {
        [faster, slower] => {
            let apart = slower.mean() - faster.mean();
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
    fn what_is_far_apart_is_settled_and_what_overlaps_is_not() {
        let (fast, slow) = (samples(&[10.0, 11.0, 10.0, 9.0]), samples(&[100.0, 101.0, 99.0, 100.0]));
        assert!(is_settled(&[&slow, &fast], 3.0));
        let near = samples(&[10.0, 10.0, 10.0, 11.0]);
        assert!(!is_settled(&[&fast, &near], 3.0));
        assert!(!is_settled(&[&samples(&[1.0]), &samples(&[100.0])], 3.0), "one sample proves nothing");
        assert!(is_settled(&[&fast], 3.0) && is_settled(&[], 3.0));
    }

    #[test]
    fn known_statistics() {
        let one = samples(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((one.median(), one.quantile(1.0), one.quantile(0.0)), (2.5, 4.0, 1.0));
        assert_eq!(one.variance(), 1.25);
    }

    proptest! {
        #[test]
        fn the_order_of_the_list_does_not_matter(
            lists in proptest::collection::vec(proptest::collection::vec(1.0..1e6f64, 2..9), 1..5),
        ) {
            let all: Vec<Samples> = lists.iter().map(|list| samples(list)).collect();
            let forwards: Vec<&Samples> = all.iter().collect();
            let backwards: Vec<&Samples> = all.iter().rev().collect();
            prop_assert_eq!(is_settled(&forwards, 3.0), is_settled(&backwards, 3.0));
        }
    }
}
