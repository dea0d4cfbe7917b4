//! Symbolic sizes as JSON: a number, or a list of products.

use serde::{Deserialize, Serialize};

use crate::dim::{Dim, Factor, Symbol};

/// A size.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DimRecord {
    Number(i64),
    Terms(Vec<(i64, Vec<FactorRecord>)>),
}

/// A factor of a product.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactorRecord {
    Symbol(u32),
    FloorDiv(Box<(DimRecord, DimRecord)>),
    Modulo(Box<(DimRecord, DimRecord)>),
    Min(Box<(DimRecord, DimRecord)>),
    Max(Box<(DimRecord, DimRecord)>),
}

pub fn from_dim(dim: &Dim) -> DimRecord {
    if let Some(value) = dim.constant() {
        return DimRecord::Number(value);
    }
    let pair = |a: &Dim, b: &Dim| Box::new((from_dim(a), from_dim(b)));
    let factor = |factor: &Factor| match factor {
        Factor::Symbol(symbol) => FactorRecord::Symbol(symbol.0),
        Factor::FloorDiv(a, b) => FactorRecord::FloorDiv(pair(a, b)),
        Factor::Modulo(a, b) => FactorRecord::Modulo(pair(a, b)),
        Factor::Min(a, b) => FactorRecord::Min(pair(a, b)),
        Factor::Max(a, b) => FactorRecord::Max(pair(a, b)),
    };
    let terms = dim.terms().iter();
    DimRecord::Terms(
        terms.map(|(factors, coefficient)| (*coefficient, factors.iter().map(factor).collect())).collect(),
    )
}

/// The size; `symbols` is the number of symbols of the graph.
pub fn to_dim(record: &DimRecord, symbols: usize) -> Result<Dim, String> {
    let terms = match record {
        DimRecord::Number(value) => return Ok(Dim::from(*value)),
        DimRecord::Terms(terms) => terms,
    };
    let mut sum = Dim::from(0);
    for (coefficient, factors) in terms {
        let mut product = Dim::from(*coefficient);
        for factor in factors {
            product = product.times(&to_factor(factor, symbols)?);
        }
        sum = sum.plus(&product);
    }
    Ok(sum)
}

fn to_factor(record: &FactorRecord, symbols: usize) -> Result<Dim, String> {
    let both = |pair: &(DimRecord, DimRecord)| Ok((to_dim(&pair.0, symbols)?, to_dim(&pair.1, symbols)?));
    match record {
        FactorRecord::Symbol(symbol) if (*symbol as usize) < symbols => Ok(Dim::from(Symbol(*symbol))),
        FactorRecord::Symbol(symbol) => Err(format!("symbol s{symbol} does not exist")),
        FactorRecord::FloorDiv(pair) => both(pair).map(|(a, b)| a.floor_div(&b)),
        FactorRecord::Modulo(pair) => both(pair).map(|(a, b)| a.modulo(&b)),
        FactorRecord::Min(pair) => both(pair).map(|(a, b)| a.smaller(&b)),
        FactorRecord::Max(pair) => both(pair).map(|(a, b)| a.larger(&b)),
    }
}

pub fn from_dims(dims: &[Dim]) -> Vec<DimRecord> {
    dims.iter().map(from_dim).collect()
}

pub fn to_dims(records: &[DimRecord], symbols: usize) -> Result<Vec<Dim>, String> {
    records.iter().map(|record| to_dim(record, symbols)).collect()
}
