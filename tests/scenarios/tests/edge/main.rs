//! Edge cases: odd shapes, borders of buckets, figures that must not count, devices nobody knew, policies that contradict.

mod attention;
mod borders;
mod devices;
mod figures;
mod policy;
mod shapes;
mod splitting;
