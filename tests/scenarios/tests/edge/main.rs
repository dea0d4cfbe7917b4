//! Edge cases: unusual shapes, bucket boundaries, stale measurements, unknown devices, contradictory
//! policies.

mod attention;
mod borders;
mod devices;
mod measurements;
mod policy;
mod shapes;
mod splitting;
