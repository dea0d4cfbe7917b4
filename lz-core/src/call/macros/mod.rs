//! Macros that declare an operation's types and methods from tables. Only generated code uses them.
//!
//! Kinds of inputs: `tensor`, `tensor_mut`, `texts`, `handle`; any other word is the type of a parameter.
//! Kinds of outputs: `tensor`, `dynamic` (the kernel determines the size) and `texts`, each also `optional_…`.

mod arguments;
mod checks;
mod kernels;
mod outputs;
mod shapes;
