//! The shortest path through a block, over the layout and dtype that flow from step to step; fused kernels are longer edges.
//!
//! Nothing here depends on kernels or operations: an edge has a cost, an input and an output.

use std::collections::BTreeMap;

use lz_schema::DType;

/// The layout and element type that flow between two steps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Flow {
    pub layout: String,
    pub dtype: Option<DTypeOrd>,
}

/// A dtype, ordered by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DTypeOrd(pub u8);

impl DTypeOrd {
    pub fn dtype(self) -> Option<DType> {
        DType::from_number(self.0)
    }
}

/// Possible conversions, and their cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ConversionCosts {
    pub layout: bool,
    pub dtype: bool,
    pub each: f64,
}

/// A kernel that covers one or more steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Edge {
    /// Number of steps.
    pub covers: usize,
    /// Its own cost.
    pub cost: f64,
    pub takes: Flow,
    pub makes: Flow,
    /// Conversions that it can do on its input.
    pub incoming: ConversionCosts,
    /// Cost of each conversion of its output to the declared form.
    pub outgoing: f64,
    /// Breaks ties: lower first.
    pub rank: String,
}

/// A block: the edges that start at each step, and the declared flow into each step and out of the last.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    pub edges: Vec<Vec<Edge>>,
    /// Number of steps plus one.
    pub declared: Vec<Flow>,
}

/// Which side converts between two steps, and the cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Conversion {
    /// No conversion.
    None,
    /// The consumer.
    Incoming(f64),
    /// The producer.
    Outgoing(f64),
}

impl Conversion {
    pub fn cost(self) -> f64 {
        match self {
            Conversion::None => 0.0,
            Conversion::Incoming(cost) | Conversion::Outgoing(cost) => cost,
        }
    }
}

/// The conversion from `available` to `required`; `None` if it is not possible. `outgoing` is the producer's cost per conversion to the
/// declared form, which every producer can do: it is the contract of the operation.
pub(super) fn convert(
    available: &Flow,
    required: &Flow,
    declared: &Flow,
    outgoing: Option<f64>,
    incoming: ConversionCosts,
) -> Option<Conversion> {
    let (layout, dtype) = (available.layout != required.layout, available.dtype != required.dtype);
    let count = f64::from(u8::from(layout) + u8::from(dtype));
    if !layout && !dtype {
        return Some(Conversion::None);
    }
    let outgoing = outgoing.filter(|_| required == declared).map(|each| Conversion::Outgoing(each * count));
    let able = (!layout || incoming.layout) && (!dtype || incoming.dtype);
    let incoming = able.then_some(Conversion::Incoming(incoming.each * count));
    match (outgoing, incoming) {
        (Some(outgoing), Some(incoming)) if incoming.cost() < outgoing.cost() => Some(incoming),
        (Some(outgoing), _) => Some(outgoing),
        (None, incoming) => incoming,
    }
}

/// A path: each edge by step and position, with the conversion before it, and the conversion after the last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Path {
    pub total: f64,
    pub edges: Vec<(usize, usize, Conversion)>,
    pub last: Conversion,
}

/// A state: the flow, and the producer's cost of converting it (as bits, so that it is ordered).
type State = (Flow, Option<u64>);

#[derive(Debug, Clone)]
struct ReachedState {
    total: f64,
    edges: Vec<(usize, usize, Conversion)>,
    rank: Vec<String>,
}

impl ReachedState {
    fn is_better(&self, other: &ReachedState) -> bool {
        self.total.total_cmp(&other.total).then_with(|| self.rank.cmp(&other.rank)).is_lt()
    }
}

/// The cheapest path; ties are broken by rank. `None` if there is none.
pub(super) fn shortest(graph: &Graph) -> Option<Path> {
    let steps = graph.edges.len();
    let mut reached: Vec<BTreeMap<State, ReachedState>> = vec![BTreeMap::new(); steps + 1];
    let start = ReachedState { total: 0.0, edges: Vec::new(), rank: Vec::new() };
    reached.first_mut()?.insert((graph.declared.first()?.clone(), None), start);
    for step in 0..steps {
        let here: Vec<(State, ReachedState)> = std::mem::take(reached.get_mut(step)?).into_iter().collect();
        let declared = graph.declared.get(step)?;
        for (position, edge) in graph.edges.get(step)?.iter().enumerate() {
            let Some(available) = reached.get_mut(step + edge.covers.max(1)) else { continue };
            for ((flow, producer), before) in &here {
                let outgoing = producer.map(f64::from_bits);
                let Some(conversion) = convert(flow, &edge.takes, declared, outgoing, edge.incoming) else {
                    continue;
                };
                let mut next = before.clone();
                next.total += conversion.cost() + edge.cost;
                next.edges.push((step, position, conversion));
                next.rank.push(edge.rank.clone());
                let state = (edge.makes.clone(), Some(edge.outgoing.to_bits()));
                match available.get(&state) {
                    Some(known) if !next.is_better(known) => {}
                    _ => {
                        available.insert(state, next);
                    }
                }
            }
        }
    }
    let required = graph.declared.last()?;
    let mut best: Option<(ReachedState, Conversion)> = None;
    for ((flow, producer), mut one) in std::mem::take(reached.last_mut()?) {
        let Some(last) =
            convert(&flow, required, required, producer.map(f64::from_bits), ConversionCosts::default())
        else {
            continue;
        };
        one.total += last.cost();
        if best.as_ref().is_none_or(|(known, _)| one.is_better(known)) {
            best = Some((one, last));
        }
    }
    best.map(|(one, last)| Path { total: one.total, edges: one.edges, last })
}

/// The cost of a path of given edges (step, position); `None` if it is not possible.
pub(super) fn follow(graph: &Graph, chosen: &[(usize, usize)]) -> Option<Path> {
    let mut flow = graph.declared.first()?.clone();
    let mut producer = None;
    let mut path = Path { total: 0.0, edges: Vec::new(), last: Conversion::None };
    for (step, position) in chosen {
        let edge = graph.edges.get(*step)?.get(*position)?;
        let declared = graph.declared.get(*step)?;
        let conversion = convert(&flow, &edge.takes, declared, producer, edge.incoming)?;
        path.total += conversion.cost() + edge.cost;
        path.edges.push((*step, *position, conversion));
        (flow, producer) = (edge.makes.clone(), Some(edge.outgoing));
    }
    let required = graph.declared.last()?;
    path.last = convert(&flow, required, required, producer, ConversionCosts::default())?;
    path.total += path.last.cost();
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec as vec_of;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn flow() -> impl Strategy<Value = Flow> {
        (select(vec!["BSHD", "BHSD", "SBHD"]), select(vec![None, Some(DTypeOrd(1)), Some(DTypeOrd(2))]))
            .prop_map(|(layout, dtype)| Flow { layout: layout.to_owned(), dtype })
    }

    fn edge() -> impl Strategy<Value = Edge> {
        let costs = (0i32..20, (any::<bool>(), any::<bool>(), 0i32..9), 0i32..9);
        (1usize..4, costs, flow(), flow(), 0u8..9).prop_map(
            |(covers, (cost, (layout, dtype, each), outgoing), takes, makes, rank)| Edge {
                covers,
                cost: f64::from(cost - 5),
                takes,
                makes,
                incoming: ConversionCosts { layout, dtype, each: f64::from(each) },
                outgoing: f64::from(outgoing),
                rank: rank.to_string(),
            },
        )
    }

    /// Brute force over all sequences of edges.
    fn all(graph: &Graph, step: usize, chosen: &mut Vec<(usize, usize)>, best: &mut Option<f64>) {
        if step == graph.edges.len() {
            if let Some(path) = follow(graph, chosen)
                && best.is_none_or(|known| path.total < known)
            {
                *best = Some(path.total);
            }
            return;
        }
        for (position, edge) in graph.edges[step].iter().enumerate() {
            if step + edge.covers <= graph.edges.len() {
                chosen.push((step, position));
                all(graph, step + edge.covers, chosen, best);
                chosen.pop();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn shortest_path_matches_brute_force(
            edges in vec_of(vec_of(edge(), 0..4), 1..5),
            declared in vec_of(flow(), 6),
        ) {
            let declared = declared[..=edges.len()].to_vec();
            let graph = Graph { edges, declared };
            let found = shortest(&graph);
            let mut best = None;
            all(&graph, 0, &mut Vec::new(), &mut best);
            prop_assert_eq!(found.as_ref().map(|path| path.total), best);
            if let Some(found) = found {
                let chosen: Vec<(usize, usize)> =
                    found.edges.iter().map(|(step, position, _)| (*step, *position)).collect();
                prop_assert_eq!(follow(&graph, &chosen), Some(found), "`follow` computes the same path");
            }
        }
    }
}
