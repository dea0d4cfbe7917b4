//! The gated delta rule in f64: the state of one head of linear attention.

/// One position of a head.
pub struct Position {
    /// The query.
    pub q: Vec<f64>,
    /// The key.
    pub k: Vec<f64>,
    /// The value.
    pub v: Vec<f64>,
    /// Factor of each row of the state.
    pub decay: Vec<f64>,
    /// How much of the state is replaced.
    pub beta: f64,
}

/// The state: a matrix with a row per key feature and a column per value feature.
pub struct State {
    rows: Vec<Vec<f64>>,
}

impl State {
    /// A state of this size with these elements.
    pub fn new(key_dim: i64, value_dim: i64, element: impl Fn(i64, i64) -> f64) -> State {
        State { rows: (0..key_dim).map(|i| (0..value_dim).map(|j| element(i, j)).collect()).collect() }
    }

    /// Updates the state by one position, and returns the product of the query with it.
    pub fn step(&mut self, position: &Position) -> Vec<f64> {
        for (row, decay) in self.rows.iter_mut().zip(&position.decay) {
            row.iter_mut().for_each(|value| *value *= decay);
        }
        let predicted = self.product(&position.k, position.v.len());
        let change: Vec<f64> =
            position.v.iter().zip(&predicted).map(|(v, predicted)| position.beta * (v - predicted)).collect();
        for (row, k) in self.rows.iter_mut().zip(&position.k) {
            row.iter_mut().zip(&change).for_each(|(value, change)| *value += k * change);
        }
        self.product(&position.q, position.v.len())
    }

    /// The product of a row vector with the state.
    fn product(&self, left: &[f64], columns: usize) -> Vec<f64> {
        (0..columns).map(|j| left.iter().zip(&self.rows).map(|(left, row)| left * row[j]).sum()).collect()
    }

    /// Calls `body` with the indices and the value of each element.
    pub fn for_each(&self, mut body: impl FnMut(i64, i64, f64)) {
        for (i, row) in (0..).zip(&self.rows) {
            for (j, value) in (0..).zip(row) {
                body(i, j, *value);
            }
        }
    }
}

/// A row divided by `sqrt(Σ x² + 1e-6)`.
pub fn l2_normalized(row: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    row.iter().map(|x| x * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_update_replaces_the_value_of_its_key() {
        let mut state = State::new(2, 1, |i, _| [3.0, 5.0][i as usize]);
        let position =
            Position { q: vec![1.0, 1.0], k: vec![1.0, 0.0], v: vec![7.0], decay: vec![1.0, 0.5], beta: 1.0 };
        assert_eq!(state.step(&position), [9.5]);
        let mut found = Vec::new();
        state.for_each(|_, _, value| found.push(value));
        assert_eq!(found, [7.0, 2.5]);
    }
}
